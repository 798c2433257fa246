"""NVIDIA GPUs: `printer/` prints Triton, `compile` builds it, `plan` and `executable` run it.

`driver` and `launch` reach the device through ctypes; `interpreter/` runs the same text on the
CPU.
"""
