"""Tensors that may share memory, and the effect of an in-place write to one of them on the others.

`aliases` records for each storage the memory that it may be. `joined` derives these facts for
tensors that leave a branch, and `carried` for tensors that a loop carries, including the paths
through the sources of a storage.
"""
