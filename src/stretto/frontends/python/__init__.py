"""Capture: ordinary PyTorch code with Python control flow into a Program."""

from stretto.frontends.python.entry import capture, capturing
from stretto.frontends.python.reading import Reading, is_structural
from stretto.frontends.python.result import (
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
from stretto.frontends.python.watch import Watch

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
