"""Lays out the constant weights of convolutions in the order in which their images are read.

torch keeps weights as [oc, ic, ky, kx]. Where the channels of an image are contiguous, a machine
whose lanes read neighbours together wants the taps outermost, so that weights and image are both
read in vectors along the channels. A depthwise convolution, whose lanes are channels, wants the
channels of its weights contiguous.

    v[n, y, x, c] = sum w[c, i, ky, kx] * u[n, y + ky, x + kx, i]          over (ky, kx, i)
    ->
    v[n, y, x, c] = sum packed[c, (ky, kx, i)] * u[n, y + ky, x + kx, i]   over (ky, kx, i)

Only the load of the weights changes. Convolutions that read their weights in order already, as
those with a single tap, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.device.expr import Access, Apply, Buffer, Expr, Index, Load, Var
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import Operator
from stretto.device.tree import Tree
from stretto.kernels.contraction import narrow_load, stride
from stretto.kernels.panels import Packings, PanelRead, constant_layout, static
from stretto.kernels.products import factors
from stretto.kernels.steps import NewBuffers, replace_operators


def weights_in_order(
    tree: Tree[Items], packings: Packings, may_pack: Callable[[Buffer], bool]
) -> Tree[Items]:
    """The tree with packed weights where that makes loads contiguous; `packings` gets the new
    constants. may_pack: whether a copy of a constant would be made anew when it changes."""

    def steps(operator: Operator, new: NewBuffers) -> tuple[LeafItem, ...]:
        weight = _weight(operator)
        if weight is None or not may_pack(weight.buffer):
            return (operator,)
        column = _column(operator, weight)
        lanes = None if column is None else _lanes(operator, weight, column)
        if column is None or lanes is None:
            return (operator,)
        columns = static(operator.dims[column]), static(stride(weight, column))
        packed = packings.add(operator, weight, (), columns, lanes)
        return (PanelRead(operator, packed, weight, (), Index.of(Var(column))).executed(),)

    changed = replace_operators(tree, steps)
    return Tree(changed.functions, tuple(packings.externals))


def _weight(operator: Operator) -> Access | None:
    """The constant weights of a convolution, whose sizes are all known."""
    pair = factors(operator)
    if operator.name != "convolution" or pair is None or operator.accumulate:
        return None
    load = narrow_load(pair[0]) or pair[0]
    if not isinstance(load, Load) or constant_layout(operator, load.access) is None:
        return None
    if not all(isinstance(extent, int) and extent > 0 for extent in operator.reduce):
        return None
    return load.access


def _column(operator: Operator, weight: Access) -> int | None:
    """The dim of the output channels: the only one but the reduced dims that the weights depend
    on."""
    found = [n for n in weight.offset.vars() if n < len(operator.dims)]
    if len(found) != 1 or not isinstance(operator.dims[found[0]], int):
        return None
    return found[0]


def _lanes(operator: Operator, weight: Access, column: int) -> int | None:
    """How many output channels of packed weights lie side by side; None where the weights are
    right as they are."""
    pair = factors(operator)
    image = None if pair is None else _image(pair[1])
    depths = [n for n, extent in enumerate(operator.reduce, len(operator.dims)) if extent != 1]
    if image is None or not depths:
        return None
    if stride(image.access, depths[-1]) == 1 and stride(weight, depths[-1]) != 1:
        return 1
    both = stride(image.access, column) == stride(operator.out, column) == 1
    return static(operator.dims[column]) if both and stride(weight, column) != 1 else None


def _image(expr: Expr) -> Load | None:
    """The load of an image that may be padded and converted."""
    match expr:
        case Load():
            return expr
        case Apply("cast", (inner,), _) | Apply("where", (_, inner, _), _):
            return _image(inner)
        case _:
            return None
