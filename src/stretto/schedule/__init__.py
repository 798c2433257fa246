"""From kernels to a DeviceProgram: which unit runs which task when, and where memory lies.

`scheduler.schedule` is the entry. A policy (`wavefront`, `team`) deals the tasks of each leaf,
`memory` places buffers by their lives (`liveness`), and a synchroniser (`synchronize`,
`team_sync`) inserts the waits. `plan` cuts a finished program into launches where a GPU's
library calls are.
"""
