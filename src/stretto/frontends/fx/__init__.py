"""Conversion of FX graphs, as Dynamo and torch.export make them, to Programs.

A graph is run node by node under the tracer of `frontends.python`, which handles operators, shared
memory and in-place writes; so both frontends give the same program for the same operators.
"""

from stretto.frontends.fx.graph import BoundGraph, GraphFunction, SharedOutput, shared_outputs

__all__ = ["BoundGraph", "GraphFunction", "SharedOutput", "shared_outputs"]
