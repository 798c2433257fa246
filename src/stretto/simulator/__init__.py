"""Predicts how long a DeviceProgram runs on a device that need not be there.

`devices` has the figures of devices, `control` walks the control tree, `work` says what a task
costs, `channel` shares bandwidth among the units, `simulate` runs the program event by event, and
`result` says what the run was made of: segments, the critical path, stretches; `launches` what it
would take with a launch per kernel.
"""
