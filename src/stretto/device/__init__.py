"""The device language: what programs are made of once they are no longer tensors of Python.

Scalar expressions over buffers (`expr`, `functions`), operators, kernels and tasks (`operator`),
the control tree around them (`tree`), the DeviceProgram with its schedules (`program`), plans of
launches (`plan`), and the four forms that a program takes one after the other (`forms`). `text`
prints and reads every form, by the patterns of `syntax`. `flow` is the walk of all analyses,
`regions` and `boxes` say what memory is touched, `evaluate` what operators mean, `verifier/` proves
that a program is safe. Nothing here knows Python capture, ATen's rules or a machine.
"""
