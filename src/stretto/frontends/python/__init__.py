"""Capture: ordinary PyTorch code with Python control flow becomes a Program.

`interpreter` interprets the user's function once, on traced tensors and a heap of its own.
`tracing` has the tracer, `operators` records tensor operators, `values`, `lists` and `aliasing`
handle numbers, texts, lists and shared memory, `calls` has rules for native functions. `guards`
says what a call must find as it was, `results` describes inputs, outputs and changes for the
caller, and `segments` runs functions that cannot be captured as a whole in pieces. Each folder
imports only folders earlier in the order of `tests/test_layers.py`.
"""

from stretto.frontends.python.guards.reading import Reading, is_structural
from stretto.frontends.python.interpreter.capture import capture, capturing
from stretto.frontends.python.interpreter.host import call_in_program
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
from stretto.frontends.python.segments.running import (
    Refused,
    RunInPython,
    can_be_split,
    is_separately_compilable,
    run_in_python,
)
from stretto.frontends.python.tracing.history import SeenSizes
from stretto.frontends.python.tracing.locations import MARK
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
    "call_in_program",
    "can_be_split",
    "capture",
    "capturing",
    "is_separately_compilable",
    "is_structural",
    "run_in_python",
]
