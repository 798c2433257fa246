"""Small trees of kernels, built by hand."""

from __future__ import annotations

from stretto.device.costs import CostModel
from stretto.device.expr import Access, Apply, Buffer, Const, Expr, Index, Load, Position, Reg, Var
from stretto.device.operator import Kernel, Operator, Span, Stage, TileDim
from stretto.device.regions import Body
from stretto.device.tree import Node, Tree, TreeFunction
from stretto.ir.types import DType

F32 = DType.F32
EAGER = CostModel(wait_seconds=0, wake_seconds=0, small_waits=0, share_bytes=0)
"""Uses all units and shares all memory."""


def buffer(name: str, *shape: int, kind: str = "local", slot: int = -1) -> Buffer:
    return Buffer(name, F32, shape, kind, slot)


def load(source: Buffer, *index: int | Var | Reg | Index) -> Expr:
    return Load(Access(source, source.shape, tuple(Index.of(i) for i in index)))


def call(function: str, *args: Expr) -> Expr:
    return Apply(function, args, args[0].dtype)


def at(register: Reg) -> Expr:
    return Position(Index.of(register))


def number(value: int) -> Expr:
    return Const(value, DType.I64)


def condition(function: str, a: Expr, b: Expr) -> Expr:
    return Apply(function, (a, b), DType.BOOL)


def map_kernel(
    name: str,
    out: Buffer,
    value: Expr,
    tile: int,
    *,
    seconds: float = 1e-6,
    index: tuple[Index, ...] | None = None,
    reduce: tuple[int, ...] = (),
    combine: str = "",
) -> Kernel:
    """out[Var(0), ...] = value, the last dim of `out` cut into tiles."""
    dims = tuple(d for d in out.shape if isinstance(d, int))
    if index is None:
        index = tuple(Index.of(Var(d)) for d in range(len(dims)))
    else:
        dims = dims[-1:]
    operator = Operator(name, dims, reduce, combine, value, Access(out, out.shape, index))
    spans = tuple(Span(d) for d in dims[:-1])
    stage = Stage(operator, (*spans, Span(dims[-1], grid=0)))
    return Kernel(name, (TileDim(dims[-1], tile),), (stage,), seconds)


def function(
    name: str,
    body: Node[Body],
    locals: tuple[Buffer, ...] = (),
    *,
    tensors: tuple[Buffer, ...] = (),
    written: tuple[Buffer, ...] = (),
    params: tuple[Reg, ...] = (),
    results: tuple[Reg, ...] = (),
) -> TreeFunction[Body]:
    return TreeFunction(name, params, tensors, written, results, locals, body)


def program(
    body: Node[Body], locals: tuple[Buffer, ...], externals: tuple[Buffer, ...]
) -> Tree[Body]:
    return Tree((function("main", body, locals),), externals)
