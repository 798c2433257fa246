"""Auto-batching: run a function written for one instance for many instances at once.

`frontend/` evaluates the user's Python on the types of the instances and builds an
`InstanceProgram` (`instance_program.py`): control and data of one instance, and the tensor
operators that it records. `passes/` groups these operators into static blocks. `host/` prints the
program as C++, which walks the flattened instances and records which block is needed, with which
operands and at which depth. `levels/` builds one Program of all blocks, which runs the recorded
blocks level by level. `interpreter.py` runs an InstanceProgram on one instance with eager
PyTorch: the oracle of the tests.
"""
