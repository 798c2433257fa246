"""The user's objects that outlive a call, and what a capture does to them.

`heap` has them as they were before the capture, finds what changed and puts everything back.
`stand_ins` are lists of the Program in the place of lists that grow in traced branches and loops,
and copies that stand for one of several objects.
"""
