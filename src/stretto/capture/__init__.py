"""Capture: ordinary PyTorch code with Python control flow into a Program."""

from stretto.capture.entry import capture
from stretto.capture.result import (
    ArgumentLeaf,
    Captured,
    ConstantSource,
    External,
    InputBinding,
    InputLeaf,
    Mutation,
    Node,
    OutputSpec,
    PythonLeaf,
    ResultLeaf,
    build_output,
)
from stretto.capture.watch import Watch

__all__ = [
    "ArgumentLeaf",
    "Captured",
    "ConstantSource",
    "External",
    "InputBinding",
    "InputLeaf",
    "Mutation",
    "Node",
    "OutputSpec",
    "PythonLeaf",
    "ResultLeaf",
    "Watch",
    "build_output",
    "capture",
]
