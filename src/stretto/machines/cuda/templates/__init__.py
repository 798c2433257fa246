"""How a thread block computes one stage of a task: a file per template, with block and cost."""

from __future__ import annotations

from math import prod

from stretto.device.operator import Loops, Template
from stretto.machines.cuda.templates.dot import Dot, dot_choice
from stretto.machines.cuda.templates.pointwise import Map, map_choice
from stretto.machines.cuda.templates.reduction import Reduce, reduce_choice
from stretto.machines.cuda.templates.stencil import Choice, Stencil

CudaTemplate = Map | Reduce | Dot | Loops
TEMPLATES: dict[str, type[Template]] = {
    template.name: template for template in (Map, Reduce, Dot, Loops)
}


def choose(stencil: Stencil, sizes: tuple[int, ...]) -> Choice:
    """The way to compute a box of these sizes."""
    operator = stencil.operator
    if not operator.combine:
        return map_choice(stencil, sizes)
    product = stencil.product
    if product is not None:
        within = all(size % sizes[n] == 0 for n, size in product.pieces)
        if stencil.is_matrix and within:
            rows, columns = (prod(sizes[n] for n in d) for d in (product.rows, product.columns))
            return dot_choice(stencil, product, sizes, rows, columns)
    return reduce_choice(stencil, sizes)
