"""From kernels to a DeviceProgram: assign tasks to units, place buffers in memory, insert waits.

`scheduler.schedule` is the entry point. It takes the plan of a policy (`policy`, `policies/`):
which unit runs which tasks, in waves. `memory` places buffers by their live ranges (`liveness`),
and `synchronize` inserts the waits, leaf by leaf (`leaf_waits`), from the memory that the units
touch (`footprint`). `plan` cuts a finished program into launches around the library calls of a GPU.
"""
