"""Prints contraction and convolution stages as calls of the templates in contract.h and conv.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.device.expr import Access, Index, Reg, Var
from stretto.kernels.contraction import image_start, loads_of, stride
from stretto.machines.cpu.printer.expr import VALUE_TYPES
from stretto.machines.cpu.printer.nest import NestPrinter
from stretto.machines.cpu.templates import Conv, Depthwise, Dots, Packed, Rows


@dataclass(slots=True)
class ContractPrinter(NestPrinter):
    """Contractions by the template that kernel selection chose."""

    def base(self, access: Access, fixed: dict[int, str]) -> str:
        """Pointer to the element at the given values of variables, 0 for the others."""
        terms: list[str] = []
        offset = access.offset
        for atom, factor in offset.terms:
            if isinstance(atom, Var):
                if atom.number in fixed and fixed[atom.number] != "0":
                    terms.append(f"({fixed[atom.number]}) * {factor}")
            elif isinstance(atom, Reg):
                terms.append(f"{self.names.reg(atom)} * {factor}")
        if offset.const:
            terms.append(str(offset.const))
        name = self.names.buffer(access.buffer)
        return f"{name} + {' + '.join(terms)}" if terms else name

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
        units: dict[int, str],
    ) -> None:
        operator, found = self.operator, template.contraction
        left_access, right_access = found.operands(operator)
        first, last = self.bounds(self.stage.box[found.column])
        row_first, row_last = ("0", "1") if inner is None else self.bounds(self.stage.box[inner])
        fixed = {**units, **{n: self.names.var(n) for n in outer}, found.column: first}
        if inner is not None:
            fixed[inner] = row_first
        rows = f"int(({row_last}) - ({row_first}))"
        columns = f"int(({last}) - ({first}))"
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
                    [left, am, found.left_depth, panels, *ends, depth, columns, "false"],
                )
            case Rows():
                right = [self.base(right_access, fixed), found.right_depth]
                self.call(
                    f"contract_rows{tile}",
                    [left, am, found.left_depth, *right, *ends, columns, depth, "false"],
                )
            case Dots():
                right = [self.base(right_access, fixed), stride(right_access, found.column)]
                self.call(
                    f"contract_dots{tile}",
                    [left, am, *right, *ends, columns, depth, "false"],
                )

    def call(self, template: str, arguments: Sequence[object]) -> None:
        """A call of a function template of namespace stretto."""
        self.out.write(f"stretto::{template}({', '.join(str(item) for item in arguments)});")

    def panels(self, template: Packed, fixed: dict[int, str]) -> str:
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
        self.out.write(f"using S = stretto::Conv<{', '.join(str(s) for s in sizes)}>;")
        batch_first, batch_last = self.bounds(self.stage.box[0])
        first, last = self.bounds(self.stage.box[1])
        if len(operator.dims) == 4:
            top, bottom = self.bounds(self.stage.box[2])
        else:
            top, bottom = "0", "1"
        self.open_loop(0, batch_first, batch_last)
        with self.out.block():
            start = image_start(operator)
            image = f"{self.names.buffer(start.buffer)} + ({self.text(start.offset)})"
            match template:
                case Depthwise():
                    self.depthwise(kind, image, first, last, top, bottom)
                case Conv():
                    self.dense(template, kind, image, first, last, top, bottom)

    def out_pointer(self, channel: str, pixel: str) -> str:
        out = self.operator.out
        first = tuple(_at_zero(index) for index in out.index)
        offset = Access(out.buffer, out.shape, first)
        return f"{self.base(offset, {0: self.names.var(0)})} + ({channel}) * S::pixels + {pixel}"

    def dense(
        self,
        conv: Conv,
        kind: str,
        image: str,
        first: str,
        last: str,
        top: str,
        bottom: str,
    ) -> None:
        weights = self.names.buffer(conv.panels)
        member = conv.read(self.operator).member
        if member != Index():
            weights = f"{weights} + ({self.text(member)})"
        height, lanes = conv.rows, conv.columns
        self.out.write(
            f"alignas(64) {kind} scratch[stretto::conv_scratch<{kind}, S, {lanes}> + 1];"
        )
        per_group = conv.convolution.per_group
        slabs = -(-per_group // height) * height
        template = f"conv_tile<{kind}, S, {height}, {lanes}>"
        end = f"int(({bottom}) * S::OW)"
        if conv.convolution.groups == 1:
            self.out.write(f"const int64_t c0 = {first}, c1 = {last};")
            out = self.out_pointer("c0", "p")
            rest = ["scratch", out, "S::pixels", "int(c1 - c0)", "int(p)", end, "false"]
            self.pixel_loop(top, bottom, lanes)
            with self.out.indent():
                self.call(template, [image, f"{weights} + c0 * S::K", *rest])
            return
        self.out.write(
            f"for (int64_t g = ({first}) / {per_group}; g < ({last}) / {per_group}; ++g)"
        )
        with self.out.block():
            out = self.out_pointer(f"g * {per_group}", "p")
            rest = ["scratch", out, "S::pixels", per_group, "int(p)", end, "false"]
            self.pixel_loop(top, bottom, lanes)
            with self.out.indent():
                group = f"{image} + g * (S::C * S::H * S::W)"
                self.call(template, [group, f"{weights} + g * ({slabs} * S::K)", *rest])

    def pixel_loop(self, top: str, bottom: str, lanes: int) -> None:
        self.out.write(f"for (int64_t p = ({top}) * S::OW; p < ({bottom}) * S::OW; p += {lanes})")

    def depthwise(
        self, kind: str, image: str, first: str, last: str, top: str, bottom: str
    ) -> None:
        self.out.write(f"for (int64_t c = {first}; c < {last}; ++c)")
        weights = self.base(loads_of(self.operator)[0], {})
        channel = f"{image} + c * (S::H * S::W)"
        taps = f"{weights} + c * S::taps"
        out = self.out_pointer("c", f"({top}) * S::OW")
        rows = [f"int({top})", f"int(({bottom}) - ({top}))", "false"]
        with self.out.indent():
            self.call(f"conv_depthwise<{kind}, S>", [channel, taps, out, *rows])


def _at_zero(index: Index) -> Index:
    """The index at 0 of its variable, unless that is the batch."""
    if index.vars() <= {0}:
        return index
    return index + Index.of(Var(next(iter(index.vars())))) * -1
