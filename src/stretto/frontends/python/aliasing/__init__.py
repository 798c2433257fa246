"""Which tensors share memory, and what a write in place to one of them does to the others.

`aliases` keeps for each storage whose memory it may be. `joined` finds that out behind a branch and
`carried` around a loop, both with `ways`, the paths through the sources of a storage.
"""
