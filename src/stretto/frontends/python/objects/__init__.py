"""The user's objects that outlive a call, and the effects of a capture on them.

`heap` stores them as they were before the capture, finds changes and restores everything.
`stand_ins` has Program lists that replace Python lists growing in traced branches and
loops, and copies that represent one of several objects. `foreign` tracks native calls that
change objects outside of the state.
"""
