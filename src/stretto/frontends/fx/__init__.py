"""FX graphs, as Dynamo and torch.export make them, into Programs.

A graph is run node by node under the tracer of `frontends.python`, which knows operators, shared
memory and writes in place; so both front ends give the same program for the same operators.
"""

from stretto.frontends.fx.graph import BoundGraph, GraphFunction, SharedOutput, shared_outputs

__all__ = ["BoundGraph", "GraphFunction", "SharedOutput", "shared_outputs"]
