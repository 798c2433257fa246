"""Prints contraction and convolution stages as calls of the templates in contract.h and conv.h."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.device.expr import Access, Index, Reg, Var
from stretto.kernels.contraction import image_start, loads_of, stride
from stretto.machines.cpu.printer.expr import VALUE_TYPES, iteration
from stretto.machines.cpu.printer.nest import NestPrinter
from stretto.machines.cpu.templates import Conv, Depthwise, Dots, Packed, Rows
from stretto.machines.statements import Assign, Do, Raw
from stretto.machines.terms import Operand, Term, call, infix, literal, total, variable

PIXEL, CHANNEL, GROUP, FIRST, LAST, SCRATCH = map(variable, ("p", "c", "g", "c0", "c1", "scratch"))
PIXELS, PIXELS_OF_ROW = literal("S::pixels"), literal("S::OW")


@dataclass(slots=True)
class ContractPrinter(NestPrinter):
    """Contractions by the template that kernel selection chose."""

    def base(self, access: Access, fixed: dict[int, Term]) -> Term:
        """Pointer to the element at the given values of variables, 0 for the others."""
        terms: list[Term] = [self.names.buffer(access.buffer)]
        offset = access.offset
        for atom, factor in offset.terms:
            if isinstance(atom, Var):
                if atom.number in fixed and fixed[atom.number].text != "0":
                    terms.append(fixed[atom.number] * factor)
            elif isinstance(atom, Reg):
                terms.append(self.names.reg(atom) * factor)
        if offset.const:
            terms.append(literal(offset.const))
        return total(*terms) or literal(0)

    def contraction(self, template: Packed | Rows | Dots) -> None:
        operator, found = self.operator, template.contraction
        outer = [*found.batch, *found.rows[:-1]]
        inner = found.rows[-1] if found.rows else None
        units = {
            n: self.bounds(self.stage.box[n])[0] for n, d in enumerate(operator.dims) if d == 1
        }
        self.nest(outer, lambda: self.contract_call(template, inner, outer, units))

    def contract_call(
        self,
        template: Packed | Rows | Dots,
        inner: int | None,
        outer: list[int],
        units: dict[int, Term],
    ) -> None:
        operator, found = self.operator, template.contraction
        left_access, right_access = found.operands(operator)
        first, last = self.bounds(self.stage.box[found.column])
        fixed = {**units, **{n: iteration(n) for n in outer}, found.column: first}
        rows: Operand = 1
        if inner is not None:
            fixed[inner], row_last = self.bounds(self.stage.box[inner])
            rows = call("int", row_last - fixed[inner])
        columns = call("int", last - first)
        left = self.base(left_access, fixed)
        out = self.base(operator.out, fixed)
        am = 0 if inner is None else stride(left_access, inner)
        ldc = 0 if inner is None else stride(operator.out, inner)
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        depth = found.depth
        ends = [out, ldc, rows]
        tile = f"<{kind}, {template.rows}, {template.columns}>"
        match template:
            case Packed():
                panels = self.panels(template, fixed)
                self.call(
                    f"contract_packed_many{tile}",
                    *(left, am, found.left_depth, panels, *ends, depth, columns),
                )
            case Rows():
                assert found.right_depth is not None
                right = self.base(right_access, fixed), found.right_depth
                self.call(
                    f"contract_rows{tile}",
                    *(left, am, found.left_depth, *right, *ends, columns, depth),
                )
            case Dots():
                right = self.base(right_access, fixed), stride(right_access, found.column)
                self.call(f"contract_dots{tile}", left, am, *right, *ends, columns, depth)

    def call(self, template: str, *arguments: Operand) -> None:
        """A call of a function template of namespace stretto that does not add to what is there."""
        self.out.add(Do(call(f"stretto::{template}", *arguments, "false")))

    def panels(self, template: Packed, fixed: dict[int, Term]) -> Term:
        """Where the panels of the task's columns start in the packed constant."""
        packed = template.panels
        start = Access(packed, (packed.elements,), (template.read(self.operator).panel,))
        return self.base(start, fixed)

    # ---- convolution -------------------------------------------------------------------------
    def convolution(self, template: Conv | Depthwise) -> None:
        operator, found = self.operator, template.convolution
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        pairs = (found.kernel, found.step, found.padding, found.dilation)
        sizes = [found.in_channels, found.height, found.width, *(n for pair in pairs for n in pair)]
        shape = ", ".join(str(size) for size in sizes)
        self.out.add(Raw(literal(f"using S = stretto::Conv<{shape}>;")))
        box = self.stage.box
        rows = self.bounds(box[2]) if len(operator.dims) == 4 else (literal(0), literal(1))
        with self.loop(iteration(0), *self.bounds(box[0])):
            start = image_start(operator)
            image = self.names.buffer(start.buffer) + self.index(start.offset)
            match template:
                case Depthwise():
                    self.depthwise(kind, image, self.bounds(box[1]), rows)
                case Conv():
                    self.dense(template, kind, image, self.bounds(box[1]), rows)

    def out_pointer(self, channel: Term, pixel: Term) -> Term:
        out = self.operator.out
        first = tuple(_at_zero(index) for index in out.index)
        image = self.base(Access(out.buffer, out.shape, first), {0: iteration(0)})
        return image + channel * PIXELS + pixel

    def dense(
        self,
        conv: Conv,
        kind: str,
        image: Term,
        channels: tuple[Term, Term],
        rows: tuple[Term, Term],
    ) -> None:
        weights = self.names.buffer(conv.panels)
        member = conv.read(self.operator).member
        if member != Index():
            weights = weights + self.index(member)
        height, lanes = conv.rows, conv.columns
        memory = f"alignas(64) {kind} scratch[stretto::conv_scratch<{kind}, S, {lanes}> + 1];"
        self.out.add(Raw(literal(memory), SCRATCH))
        top, bottom = (row * PIXELS_OF_ROW for row in rows)
        per_group = conv.convolution.per_group
        template = f"conv_tile<{kind}, S, {height}, {lanes}>"
        pixels = call("int", PIXEL), call("int", bottom)
        first, last = channels
        if conv.convolution.groups == 1:
            self.out.add(Assign(FIRST, first, "const int64_t"), Assign(LAST, last, "const int64_t"))
            out, count = self.out_pointer(FIRST, PIXEL), call("int", LAST - FIRST)
            with self.loop(PIXEL, top, bottom, step=lanes):
                panels = weights + FIRST * literal("S::K")
                self.call(template, image, panels, SCRATCH, out, PIXELS, count, *pixels)
            return
        slabs = -(-per_group // height) * height
        first, last = (infix(bound, "/", per_group) for bound in channels)
        with self.loop(GROUP, first, last):
            out = self.out_pointer(GROUP * per_group, PIXEL)
            with self.loop(PIXEL, top, bottom, step=lanes):
                group = image + GROUP * literal("(S::C * S::H * S::W)")
                panels = weights + GROUP * literal(f"({slabs} * S::K)")
                self.call(template, group, panels, SCRATCH, out, PIXELS, per_group, *pixels)

    def depthwise(
        self, kind: str, image: Term, channels: tuple[Term, Term], rows: tuple[Term, Term]
    ) -> None:
        top, bottom = rows
        with self.loop(CHANNEL, *channels):
            weights = self.base(loads_of(self.operator)[0], {})
            self.call(
                f"conv_depthwise<{kind}, S>",
                image + CHANNEL * literal("(S::H * S::W)"),
                weights + CHANNEL * literal("S::taps"),
                self.out_pointer(CHANNEL, top * PIXELS_OF_ROW),
                call("int", top),
                call("int", bottom - top),
            )


def _at_zero(index: Index) -> Index:
    """The index at 0 of its variable, unless that is the batch."""
    if index.vars() <= {0}:
        return index
    return index + Index.of(Var(next(iter(index.vars())))) * -1
