"""Time of an iteration of a conditional WHILE node of a CUDA graph.

torch 2.11 has no such nodes, so the graph is built through `cuda.bindings`, which CUDA
builds of torch include. Its body is a kernel that counts down and sets the condition, alone
or after further empty kernels. The kernels are PTX: the driver itself provides
`cudaGraphSetConditional`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ..peers.base import Skipped
from .clock import slopes, spread
from .device import Bench
from .results import WrongValue

PTX = """
.version 7.0
.target sm_80
.address_size 64

.extern .func cudaGraphSetConditional
(
    .param .b64 handle,
    .param .b32 value
);

.visible .entry count_down(.param .u64 handle, .param .u64 counter)
{
    .reg .pred %p;
    .reg .b32 %left, %more;
    .reg .b64 %handle, %counter;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %counter, [counter];
    cvta.to.global.u64 %counter, %counter;
    ld.global.u32 %left, [%counter];
    add.s32 %left, %left, -1;
    st.global.u32 [%counter], %left;
    setp.gt.s32 %p, %left, 0;
    selp.u32 %more, 1, 0, %p;
    {
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %handle;
        st.param.b32 [second], %more;
        call.uni cudaGraphSetConditional, (first, second);
    }
    ret;
}

.visible .entry nothing()
{
    ret;
}
"""


def measure(bench: Bench, kernels: int) -> dict[str, Any]:
    """Measure the seconds of an iteration whose body is `kernels` kernels, the last of which
    decides."""
    if bench.dry_run:
        raise Skipped("a dry run has no CUDA graphs")
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise Skipped(f"cuda.bindings cannot be imported: {error}") from error
    counter = torch.zeros(1, dtype=torch.int32, device=bench.device)
    graph = _Graph(driver, counter.data_ptr(), kernels)
    stream = driver.CUstream(bench.stream())

    def run(trips: int) -> None:
        counter.fill_(trips)
        _done(driver.cuGraphLaunch(graph.executable, stream))

    run(100)
    if (left := int(counter)) != 0:
        raise WrongValue(f"{left} iterations are left of 100")
    found = slopes(bench, run, 100, 2100, 7)
    return spread(found) | {"kernels": kernels}


class _Graph:
    """The graph of `while (--counter > 0)`, whose body is a chain of kernels."""

    def __init__(self, driver: Any, counter: int, kernels: int) -> None:
        self.driver = driver
        context = _done(driver.cuCtxGetCurrent())
        module = _done(driver.cuModuleLoadData(PTX.encode() + b"\0"))
        count_down = _done(driver.cuModuleGetFunction(module, b"count_down"))
        nothing = _done(driver.cuModuleGetFunction(module, b"nothing"))
        graph = _done(driver.cuGraphCreate(0))
        assign = int(driver.CU_GRAPH_COND_ASSIGN_DEFAULT)
        handle = _done(driver.cuGraphConditionalHandleCreate(graph, context, 1, assign))
        loop = driver.CUgraphNodeParams()
        loop.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        loop.conditional.handle = handle
        loop.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        loop.conditional.size = 1
        loop.conditional.ctx = context
        self._add_node(graph, loop)
        body = loop.conditional.phGraph_out[0]
        before: list[Any] = []
        for _ in range(kernels - 1):
            before = [self._kernel(body, before, nothing, ((), ()))]
        arguments = ((int(handle), counter), (ctypes.c_uint64, ctypes.c_void_p))
        self._kernel(body, before, count_down, arguments)
        self.executable = _done(driver.cuGraphInstantiate(graph, 0))
        self.keep = (module, graph)

    def _add_node(self, graph: Any, parameters: Any) -> Any:
        """Add a node. CUDA 13 has an additional parameter, the edges' data, before their number."""
        add = self.driver.cuGraphAddNode
        try:
            return _done(add(graph, None, None, 0, parameters))
        except TypeError:
            return _done(add(graph, None, 0, parameters))

    def _kernel(self, graph: Any, before: list[Any], function: Any, arguments: Any) -> Any:
        node = self.driver.CUDA_KERNEL_NODE_PARAMS()
        node.func = function
        node.gridDimX = node.gridDimY = node.gridDimZ = 1
        node.blockDimX = node.blockDimY = node.blockDimZ = 1
        node.sharedMemBytes = 0
        if arguments[0]:
            node.kernelParams = arguments
        return _done(self.driver.cuGraphAddKernelNode(graph, before, len(before), node))


def _done(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call of `cuda.bindings`. Raises RuntimeError unless it succeeded."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"{status.name} ({int(status)})")
    return values[0] if values else None
