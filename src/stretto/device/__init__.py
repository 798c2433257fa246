"""The device language: the representation of programs after tensor operations have been lowered.

It has scalar expressions over buffers (`expr`, `functions`), operators, kernels and tasks
(`operator`), the control tree around them (`tree`), the DeviceProgram with its schedules
(`program`), plans of launches (`plan`), and the four successive forms of a program (`forms`).
`text` prints and reads every form, using the patterns of `syntax`. `flow` is the traversal that all
analyses share, `regions` and `boxes` compute which memory is touched, `evaluate` defines the
meaning of operators, and `verifier/` proves that a program is safe. Nothing here depends on Python
capture, ATen's rules or a machine.
"""
