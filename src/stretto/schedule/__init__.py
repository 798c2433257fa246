"""From kernels to a DeviceProgram: which unit runs which task when, and where memory lies.

`scheduler.schedule` is the entry. It takes the plan of one of the policies (`policy`, `policies/`):
which unit runs which tasks, in waves. `memory` places buffers by their live ranges (`liveness`),
and `synchronize` inserts the waits, leaf by leaf (`leaf_waits`), from what the units touch
(`footprint`). `plan` cuts a finished program into launches where a GPU's library calls are.
"""
