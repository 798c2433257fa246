"""Capture: ordinary PyTorch code with Python control flow becomes a Program.

`entry` runs the user's function once on traced tensors (`tracing`), with its source rewritten
(`source`) so that calls and control flow reach `staging`. From there `calls` and `control`
trace functions, branches and loops, and `operators` records tensor operators. `values`, `lists`
and `aliasing` handle numbers, lists and shared memory. `objects` and `guards` watch state
outside of the function, and `results` describes inputs, outputs and changes for the caller.
Each folder imports only folders earlier in the order of `tests/test_layers.py`.
"""

from stretto.frontends.python.calls.in_python import (
    MARK,
    Refused,
    RunInPython,
    can_be_split,
    is_separately_compilable,
    run_in_python,
)
from stretto.frontends.python.entry import capture, capturing
from stretto.frontends.python.guards.reading import Reading, is_structural
from stretto.frontends.python.results.captured import (
    ArgumentLeaf,
    Captured,
    ConstantSource,
    External,
    Fetched,
    InputBinding,
    InputLeaf,
    IntLeaf,
    Mutation,
    NewContainer,
    ObjectState,
    OutputSpec,
    PythonLeaf,
    ResultLeaf,
    build_output,
)
from stretto.frontends.python.results.watch import CaptureWatch
from stretto.frontends.python.tracing.history import SeenSizes
from stretto.frontends.python.tracing.signals import ArgumentsChange, GradientsWanted
from stretto.frontends.python.tracing.symbolic_sizes import (
    CallSizes,
    FixedSize,
    SizeCondition,
    SizePlan,
    SizeRange,
    SizeSource,
)
from stretto.frontends.python.tracing.tracer import Caller

__all__ = [
    "MARK",
    "ArgumentLeaf",
    "ArgumentsChange",
    "CallSizes",
    "Caller",
    "CaptureWatch",
    "Captured",
    "ConstantSource",
    "External",
    "Fetched",
    "FixedSize",
    "GradientsWanted",
    "InputBinding",
    "InputLeaf",
    "IntLeaf",
    "Mutation",
    "NewContainer",
    "ObjectState",
    "OutputSpec",
    "PythonLeaf",
    "Reading",
    "Refused",
    "ResultLeaf",
    "RunInPython",
    "SeenSizes",
    "SizeCondition",
    "SizePlan",
    "SizeRange",
    "SizeSource",
    "build_output",
    "can_be_split",
    "capture",
    "capturing",
    "is_separately_compilable",
    "is_structural",
    "run_in_python",
]
