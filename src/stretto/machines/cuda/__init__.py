"""The CUDA machine: NVIDIA GPUs, a resident thread block per unit.

`machine` has its records. `select` chooses among `templates/`; `printer/` prints a launch as Triton
in one of the `styles`, and `compile` builds it. `plan` executes the host's part between launches,
`executable` a launch, with the `state` of its stream. A `launcher` passes kernels to the device, by
`launch` and `driver` through ctypes, or to `interpreter/`, which runs the same text on the CPU.
"""
