"""Auto-batching: a function written for one instance runs for many at once.

`frontend/` evaluates the user's Python on types of instances and makes an `InstanceProgram`
(`program.py`): control and data of one instance, with the tensor operators that it records.
`passes/` forms static blocks of these operators. `host/` prints the program as C++, which walks
the flattened instances and records which block is needed with which operands at which depth.
`levels/` makes one Program of all blocks, which runs what was recorded level by level.
`interpreter.py` runs an InstanceProgram on one instance with eager PyTorch: the oracle of the
tests.
"""
