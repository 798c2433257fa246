"""A small builder of ONNX graphs: it generates names, and subgraphs see their parent's values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
IR_VERSION = 10
TYPES = {
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


@dataclass(slots=True)
class GraphBuilder:
    """Collects the nodes of one graph; `child` starts the graph of a branch or a loop body."""

    names: "count[int]" = field(default_factory=count)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def child(self) -> "GraphBuilder":
        return GraphBuilder(self.names)

    def input(self, shape: Sequence[int] | None, dtype: str = "float32") -> str:
        """Declare the next input; a shape of None leaves it to inference."""
        name = self._name("in")
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """An initializer of this graph."""
        name = self._name("w")
        array = np.ascontiguousarray(np.asarray(value, dtype=dtype))
        # ascontiguousarray makes scalars one-dimensional
        array = array.reshape(np.shape(value))
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output, and return that output's name."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        results = [self._name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), results, **attributes))
        return results

    def graph(self, outputs: dict[str, str]) -> onnx.GraphProto:
        """The finished graph; `outputs` maps names to element types."""
        declared = [
            helper.make_tensor_value_info(name, TYPES[dtype], None)
            for name, dtype in outputs.items()
        ]
        return helper.make_graph(
            self.nodes, self._name("graph"), self.inputs, declared, initializer=self.weights
        )

    def model(self, outputs: dict[str, str]) -> onnx.ModelProto:
        return helper.make_model(
            self.graph(outputs),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )

    def reshape(self, value: str, *shape: int) -> str:
        return self.op("Reshape", value, self.constant(shape, "int64"))

    def gather(self, value: str, index: str, axis: int = 0) -> str:
        return self.op("Gather", value, index, axis=axis)

    def linear(self, value: str, weight: np.ndarray, bias: np.ndarray | None = None) -> str:
        """value [..., I] by weight [O, I], as in PyTorch."""
        product = self.op("MatMul", value, self.constant(weight.T))
        return product if bias is None else self.op("Add", product, self.constant(bias))

    def branch(self, condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> str:
        return self.op("If", condition, then_branch=then, else_branch=otherwise)

    def _name(self, stem: str) -> str:
        return f"{stem}_{next(self.names)}"
