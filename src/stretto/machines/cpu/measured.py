"""Choice among kernels whose tasks were timed on this device: measurements replace estimates.

A kernel is identified by its printed text, in which buffers are numbered and nothing is named, its
number of tasks, and the headers that the text includes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Tree, map_tree
from stretto.ir.sizes import Size
from stretto.kernels.variants import Chooser, OpenBody, OpenKernel, Variant
from stretto.machines.cpu.pool import HEADERS
from stretto.machines.cpu.printer.kernel import print_kernel
from stretto.machines.statements import write_cpp_function
from stretto.runtime.cache import content_key
from stretto.runtime.compiler import header_text
from stretto.text import Writer
from stretto.tuning import Database, KernelTime, MeasuredDevice


def kernel_key(kernel: Kernel) -> str | None:
    """Return the database key of a kernel's task time. None if it has no single time, because the
    run decides the size of its tasks, or torch computes it."""
    if kernel.call is not None or not all(isinstance(dim.extent, int) for dim in kernel.grid):
        return None
    operators = [stage.operator for stage in kernel.stages]
    if not all(isinstance(n, int) for o in operators for n in (*o.dims, *o.reduce)):
        return None
    if any(isinstance(n, Size) for o in operators for a in o.reads() for n in a.access.shape):
        return None
    out = Writer("    ")
    write_cpp_function("void kernel", print_kernel(kernel).function, out)
    return content_key(out.text(), str(kernel.tasks), _headers())[:32]


@cache
def _headers() -> str:
    return content_key(header_text(HEADERS))


@dataclass(frozen=True, slots=True)
class MeasuredChooser:
    """Chooser that applies `inner` to variants with measured times. If some variants of a kernel
    were measured, only these are considered, because estimates and measurements are not
    comparable. `units`: of the program."""

    inner: Chooser
    database: Database
    device: MeasuredDevice
    units: int

    def __call__(self, tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
        if not self.database.has_kernels(self.device):
            return self.inner(tree, costs)
        keys: dict[tuple[str, Variant], str] = {}

        def note(body: OpenBody) -> OpenBody:
            for item in body:
                if isinstance(item, OpenKernel):
                    for variant in item.variants:
                        if (key := kernel_key(item.closed(variant))) is not None:
                            keys[item.name, variant] = key
            return body

        map_tree(tree, note)
        times = self.database.kernels(self.device, keys.values())
        known = {place: times[key] for place, key in keys.items() if key in times}
        return self.inner(map_tree(tree, lambda body: self._body(body, known, costs)), costs)

    def _body(
        self, body: OpenBody, known: Mapping[tuple[str, Variant], KernelTime], costs: CostModel
    ) -> OpenBody:
        return tuple(
            self._timed(item, known, costs) if isinstance(item, OpenKernel) else item
            for item in body
        )

    def _timed(
        self,
        kernel: OpenKernel,
        known: Mapping[tuple[str, Variant], KernelTime],
        costs: CostModel,
    ) -> OpenKernel:
        """Return the kernel with only its measured variants, or unchanged if there are none."""
        found = tuple(
            self._with_time(kernel, variant, known[kernel.name, variant].seconds, costs)
            for variant in kernel.variants
            if (kernel.name, variant) in known
        )
        return replace(kernel, variants=found) if found else kernel

    def _with_time(
        self, kernel: OpenKernel, variant: Variant, seconds: float, costs: CostModel
    ) -> Variant:
        """Return the variant with its measured task time. The unit with the most tasks decides the
        total."""
        task = seconds + costs.start_seconds
        rounds = ceil(kernel.closed(variant).tasks / self.units)
        return replace(variant, task_seconds=task, seconds=rounds * task)


@dataclass(slots=True)
class NumberedChooser:
    """Chooser of variant `number` of each kernel, or its last one. It records the largest number
    of variants (`most`) and the number for each kernel (`choices`)."""

    number: int
    most: int = 1
    choices: dict[str, int] | None = None

    def __call__(self, tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
        choices: dict[str, int] = {}

        def body(items: OpenBody) -> Body:
            for item in items:
                if isinstance(item, OpenKernel):
                    choices[item.name] = len(item.variants)
            return tuple(
                item.closed(item.variants[min(self.number, len(item.variants) - 1)])
                if isinstance(item, OpenKernel)
                else item
                for item in items
            )

        chosen = map_tree(tree, body)
        self.most, self.choices = max(choices.values(), default=1), choices
        return chosen
