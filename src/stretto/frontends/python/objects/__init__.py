"""The user's objects that outlive a call, and what a capture does to them.

`heap` has them as they were before the capture, finds what changed and puts everything back.
`held_lists` are those of them that grow in traced branches and loops, `copies` stand for one of
several objects while they are joined.
"""
