"""Capture: ordinary PyTorch code with Python control flow into a Program."""

from stretto.capture.entry import capture, capturing
from stretto.capture.reading import Reading, is_structural
from stretto.capture.result import (
    ArgumentLeaf,
    Captured,
    ConstantSource,
    External,
    Fetched,
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
    "Fetched",
    "InputBinding",
    "InputLeaf",
    "Mutation",
    "Node",
    "OutputSpec",
    "PythonLeaf",
    "Reading",
    "ResultLeaf",
    "Watch",
    "build_output",
    "capture",
    "capturing",
    "is_structural",
]
