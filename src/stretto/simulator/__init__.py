"""Predicts the run time of a DeviceProgram on a device that need not be present.

`devices` has the figures of devices, `control` walks the control tree, `work` estimates
tasks, what stays on chip, and how units share bandwidth, `simulate` runs the program event
by event, and `result` analyses the run: segments, the critical path, stretches; `launches`
estimates it with one launch per kernel.
"""
