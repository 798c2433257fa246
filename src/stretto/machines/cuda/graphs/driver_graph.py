"""CUDA graphs, made node by node through the driver.

Names and layouts are those of cuda.h. Conditional nodes need a driver of CUDA 12.4 or later, and
one of `WAITS_IN_BODIES` if blocks of launches in their bodies wait for each other: with an older
driver the host executes such loops and branches. Any other function that an older driver lacks
raises a RunError that names it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import torch

from stretto.errors import RunError
from stretto.machines.cuda.driver import (
    ATTRIBUTE_COOPERATIVE,
    CudaError,
    Driver,
    pointers_to,
    run_error,
)
from stretto.machines.cuda.graphs.graph_builder import NODE_BYTES, After, GraphNode
from stretto.machines.cuda.graphs.rehearsal import GraphCall
from stretto.machines.cuda.graphs.store import Pool
from stretto.machines.cuda.graphs.words import ENTRY, PTX, WordOperation, encoded
from stretto.machines.cuda.launch import CudaInvocation, Invocation, LoadedKernel

CONDITIONAL = 13
"""CU_GRAPH_NODE_TYPE_CONDITIONAL."""
COND_IF, COND_WHILE = 0, 1
"""CUgraphConditionalNodeType."""
ASSIGN_DEFAULT = 1
"""CU_GRAPH_COND_ASSIGN_DEFAULT: a handle is reset to its default whenever the graph is launched."""
MEMORY_DEVICE = 2
"""CU_MEMORYTYPE_DEVICE."""

Words = ctypes.Array[ctypes.c_uint64]


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class ConditionalNode(ctypes.Structure):
    """CUgraphNodeParams of a conditional node: the union has 29 words; only these are used."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
        ("handle", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("size", ctypes.c_uint),
        ("bodies", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
        ("rest", ctypes.c_int64 * 25),
        ("reserved2", ctypes.c_int64),
    ]


class Maker(Protocol):
    """The GPU that a graph is made for."""

    @property
    def driver(self) -> Driver: ...
    @property
    def context(self) -> int: ...
    def captured(self, call: GraphCall, lane: Hashable) -> tuple[int, object, Pool]:
        """Capture a library call, after a rehearsal. Returns its CUgraph, the object that keeps it
        alive, and the memory that it uses. Raises CaptureError, and torch.OutOfMemoryError."""
        ...

    def numbers(self, words: Sequence[int]) -> torch.Tensor:
        """Return words in the memory of the GPU."""
        ...


@dataclass(slots=True)
class GraphContents:
    """Contents of a graph and all its bodies. keep: objects that nodes point to; the first item
    owns the graph. joint: True if blocks of a launch wait for each other. nbytes: of parameters
    and tables. pools: of library calls."""

    keep: list[object]
    joint: bool = False
    nbytes: int = 0
    pools: list[Pool] = field(default_factory=list[Pool])


class DriverGraph:
    """A CUgraph, or the body of a conditional node. Nodes are the driver's handles."""

    def __init__(self, maker: Maker, graph: int, contents: GraphContents) -> None:
        self.maker = maker
        self.driver = maker.driver
        self.graph = graph
        self.contents = contents
        self.control = words_kernel(self.driver, maker.context)

    @staticmethod
    def empty(maker: Maker) -> DriverGraph:
        """Return an empty graph. Raises RunError if the driver makes none."""
        graph = _handle(maker.driver, "cuGraphCreate", 0)
        return DriverGraph(
            maker, graph, GraphContents([_Owned(maker.driver, "cuGraphDestroy", graph)])
        )

    def kernel(self, invocation: Invocation, after: After) -> GraphNode:
        assert isinstance(invocation, CudaInvocation)
        return self._kernel(invocation.kernel, invocation.words, after)

    def library(self, call: GraphCall, after: After, lane: Hashable) -> GraphNode:
        child, keep, pool = self.maker.captured(call, lane)
        self.contents.keep.append(keep)
        self.contents.pools.append(pool)
        return self._add("cuGraphAddChildGraphNode", after, ctypes.c_void_p(child))

    def words(self, operations: Sequence[WordOperation], control: int, after: After) -> GraphNode:
        table = self.maker.numbers(encoded(operations))
        self.contents.keep.append(table)
        self.contents.nbytes += table.nbytes
        words = (ctypes.c_uint64 * 3)(table.data_ptr(), len(operations), control)
        return self._kernel(self.control, words, after)

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: After) -> GraphNode:
        self.contents.keep += (target, source)
        parameters = (ctypes.c_uint64 * 25)()  # CUDA_MEMCPY3D
        for start, tensor in ((0, source), (11, target)):
            parameters[start + 4] = MEMORY_DEVICE
            parameters[start + 6] = tensor.data_ptr()
        parameters[22:25] = target.nbytes, 1, 1
        context = ctypes.c_void_p(self.maker.context)
        return self._add("cuGraphAddMemcpyNode", after, ctypes.byref(parameters), context)

    def handle(self) -> int:
        found = ctypes.c_uint64()
        graph, context = ctypes.c_void_p(self.graph), ctypes.c_void_p(self.maker.context)
        name = "cuGraphConditionalHandleCreate"
        _call(self.driver, name, ctypes.byref(found), graph, context, 0, ASSIGN_DEFAULT)
        return found.value

    def conditional(
        self, handle: int, after: After, *, loop: bool
    ) -> tuple[GraphNode, DriverGraph]:
        node = ConditionalNode(
            type=CONDITIONAL,
            handle=handle,
            kind=COND_WHILE if loop else COND_IF,
            size=1,
            context=self.maker.context,
        )
        made = self._add("cuGraphAddNode", after, ctypes.byref(node))
        return made, DriverGraph(self.maker, node.bodies[0] or 0, self.contents)

    def instantiate(self) -> DriverReplay:
        free = free_memory(self.driver)
        made = _handle(self.driver, "cuGraphInstantiateWithFlags", ctypes.c_void_p(self.graph), 0)
        taken = free - free_memory(self.driver)
        return DriverReplay(self.driver, made, self.contents, max(self.contents.nbytes, taken))

    def _kernel(self, kernel: LoadedKernel, words: Words, after: After) -> GraphNode:
        node, keep = kernel_node(kernel, words)
        self.contents.nbytes += ctypes.sizeof(words)
        made = self._add("cuGraphAddKernelNode_v2", after, ctypes.byref(node))
        del keep  # the driver has read the parameters
        if kernel.cooperative:
            self.contents.joint = True
            value = (ctypes.c_int * 16)(1)
            place = ctypes.byref(value)
            name = "cuGraphKernelNodeSetAttribute"
            _call(self.driver, name, ctypes.c_void_p(made), ATTRIBUTE_COOPERATIVE, place)
        return made

    def _add(self, name: str, after: After, *parameters: object) -> GraphNode:
        self.contents.nbytes += NODE_BYTES
        before = (ctypes.c_void_p * len(after))(*after)
        graph, count = ctypes.c_void_p(self.graph), ctypes.c_size_t(len(after))
        return _handle(self.driver, name, graph, before, count, *parameters)


class DriverReplay:
    """A CUgraphExec. nbytes: the memory that the driver took for it, but at least the size of its
    parameters."""

    def __init__(self, driver: Driver, graph: int, contents: GraphContents, nbytes: int) -> None:
        self.nbytes = nbytes
        self.pools = tuple(contents.pools)
        self.driver = driver
        self.graph = ctypes.c_void_p(graph)
        self.joint = contents.joint
        self.keep = (*contents.keep, _Owned(driver, "cuGraphExecDestroy", graph))

    def patch(self, node: GraphNode, invocation: Invocation) -> None:
        assert isinstance(invocation, CudaInvocation)
        parameters, keep = kernel_node(invocation.kernel, invocation.words)
        name = "cuGraphExecKernelNodeSetParams_v2"
        _call(self.driver, name, self.graph, ctypes.c_void_p(node), ctypes.byref(parameters))
        del keep

    def launch(self, stream: int) -> None:
        """Enqueue a replay. Raises CudaError."""
        self.driver.call("cuGraphLaunch", self.graph, ctypes.c_void_p(stream))


def free_memory(driver: Driver) -> int:
    """Return the free bytes of the device. Raises RunError."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call(driver, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def kernel_node(kernel: LoadedKernel, words: Words) -> tuple[KernelNode, object]:
    """Return the parameters of a node, and the objects that they point to, to be kept until the
    driver has read them."""
    pointers = pointers_to(words)
    node = KernelNode(
        function=kernel.function,
        grid=(kernel.blocks, 1, 1),
        block=(kernel.threads, 1, 1),
        shared=kernel.shared,
        parameters=pointers,
    )
    return node, (pointers, words)


_WORDS_KERNELS: dict[tuple[int, int], LoadedKernel] = {}


def words_kernel(driver: Driver, context: int) -> LoadedKernel:
    """Return the kernel that executes operations, loaded once per context. Raises RunError."""
    key = id(driver), context
    if key not in _WORDS_KERNELS:
        try:
            with driver.relaxed():
                function = driver.load(PTX.encode(), ENTRY)
        except CudaError as error:
            raise run_error(error, "the control kernel of graphs cannot be loaded") from error
        _WORDS_KERNELS[key] = LoadedKernel(driver, context, function, 1, 1, 0, 0, 1, False)
    return _WORDS_KERNELS[key]


class _Owned:
    """Destroys a handle when it is no longer referenced. A running replay continues: the driver
    destroys a graph when its last launch has ended."""

    def __init__(self, driver: Driver, destroy: str, handle: int) -> None:
        weakref.finalize(self, _destroy, driver, destroy, handle).atexit = False


def _destroy(driver: Driver, name: str, handle: int) -> None:
    with suppress(CudaError):  # a destroyed context has destroyed its graphs, too
        driver.call(name, ctypes.c_void_p(handle))


def _handle(driver: Driver, name: str, *arguments: object) -> int:
    """Return the handle that a function writes through its first parameter. Raises RunError."""
    found = ctypes.c_void_p()
    _call(driver, name, ctypes.byref(found), *arguments)
    return found.value or 0


def _call(driver: Driver, name: str, *arguments: object) -> None:
    """Call a function of the driver. Raises RunError."""
    try:
        driver.call(name, *arguments)
    except CudaError as error:
        raise run_error(error, "a graph cannot be made") from error
    except AttributeError as error:
        raise RunError(
            f"the NVIDIA driver has no {name}, which a graph of this program needs",
            remedy="update the driver to one of CUDA 12.4 or later, or leave graphs out: "
            'Options(enqueue="stream")',
        ) from error
