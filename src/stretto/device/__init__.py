"""The device language: what programs are made of once they are no longer tensors of Python.

Scalar expressions over buffers (`expr`, `functions`), operators, kernels and tasks (`operator`),
the control tree around them (`tree`), and the DeviceProgram with its schedules (`program`).
`flow` is the walk of all analyses, `regions` and `boxes` say what memory is touched, `evaluate`
what operators mean, `printer` and `parser` give and read the text, `verifier/` proves that a
program is safe. Nothing here knows Python capture, ATen's rules or a machine.
"""
