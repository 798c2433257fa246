"""Prints contraction and convolution stages as calls of the templates in contract.h and conv.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.device.expr import Access, Index, Reg, Var
from stretto.kernels.contraction import Contraction, Convolution, stride
from stretto.kernels.panels import member_position, panel_position
from stretto.machines.cpu.printer.expr import VALUE_TYPES
from stretto.machines.cpu.printer.nest import NestPrinter


@dataclass(slots=True)
class ContractPrinter(NestPrinter):
    """Contractions by the method that kernel selection chose."""

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

    def contraction(self, found: Contraction) -> None:
        operator = self.operator
        outer = [*found.batch, *found.rows[:-1]]
        inner = found.rows[-1] if found.rows else None
        units = {
            n: self.bounds(self.stage.box[n])[0] for n, d in enumerate(operator.dims) if d == 1
        }
        self.nest(outer, lambda: self.contract_call(found, inner, outer, units))

    def contract_call(
        self, found: Contraction, inner: int | None, outer: list[int], units: dict[int, str]
    ) -> None:
        operator, method = self.operator, self.stage.method
        first, last = self.bounds(self.stage.box[found.column])
        row_first, row_last = ("0", "1") if inner is None else self.bounds(self.stage.box[inner])
        fixed = {**units, **{n: self.names.var(n) for n in outer}, found.column: first}
        if inner is not None:
            fixed[inner] = row_first
        rows = f"int(({row_last}) - ({row_first}))"
        columns = f"int(({last}) - ({first}))"
        left = self.base(found.left, fixed)
        out = self.base(operator.out, fixed)
        am = 0 if inner is None else stride(found.left, inner)
        ldc = 0 if inner is None else stride(operator.out, inner)
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        depth = found.depth
        ends = [out, ldc, rows]
        match method.template:
            case "packed":
                panels = self.panels(fixed)
                self.call(
                    f"contract_packed_many<{kind}, {method['mr']}, {method['nr']}>",
                    [left, am, found.left_depth, panels, *ends, depth, columns, "false"],
                )
            case "rows":
                right = [self.base(found.right, fixed), found.right_depth]
                self.call(
                    f"contract_rows<{kind}, {method['mr']}, {method['nr']}>",
                    [left, am, found.left_depth, *right, *ends, columns, depth, "false"],
                )
            case _:
                right = [self.base(found.right, fixed), stride(found.right, found.column)]
                self.call(
                    f"contract_dots<{kind}, {method['mb']}, {method['nb']}>",
                    [left, am, *right, *ends, columns, depth, "false"],
                )

    def call(self, template: str, arguments: Sequence[object]) -> None:
        """A call of a function template of namespace stretto."""
        self.out.write(f"stretto::{template}({', '.join(str(item) for item in arguments)});")

    def panels(self, fixed: dict[int, str]) -> str:
        """Where the panels of the task's columns start in the packed constant."""
        packed = self.stage.method.packed
        assert packed is not None
        start = Access(packed, (packed.elements,), (panel_position(self.stage),))
        return self.base(start, fixed)

    # ---- convolution -------------------------------------------------------------------------
    def convolution(self, found: Convolution) -> None:
        method = self.stage.method
        operator = self.operator
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        channels = 1 if method.template == "depthwise" else method["c"]
        sizes = [method[k] for k in ("h", "w", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")]
        self.out.write(f"using S = stretto::Conv<{channels}, {', '.join(str(s) for s in sizes)}>;")
        batch_first, batch_last = self.bounds(self.stage.box[0])
        first, last = self.bounds(self.stage.box[1])
        if len(operator.dims) == 4:
            top, bottom = self.bounds(self.stage.box[2])
        else:
            top, bottom = "0", "1"
        self.open_loop(0, batch_first, batch_last)
        with self.out.block():
            image = f"{self.names.buffer(found.image)} + ({self.text(found.image_start)})"
            if method.template == "depthwise":
                self.depthwise(found, kind, image, first, last, top, bottom)
            else:
                self.dense(found, kind, image, first, last, top, bottom)

    def out_pointer(self, channel: str, pixel: str) -> str:
        out = self.operator.out
        first = tuple(_at_zero(index) for index in out.index)
        offset = Access(out.buffer, out.shape, first)
        return f"{self.base(offset, {0: self.names.var(0)})} + ({channel}) * S::pixels + {pixel}"

    def dense(
        self,
        found: Convolution,
        kind: str,
        image: str,
        first: str,
        last: str,
        top: str,
        bottom: str,
    ) -> None:
        method = self.stage.method
        packed = method.packed
        assert packed is not None
        weights = self.names.buffer(packed)
        member = member_position(self.stage)
        if member != Index():
            weights = f"{weights} + ({self.text(member)})"
        height, lanes = method["mr"], method["nr"]
        self.out.write(
            f"alignas(64) {kind} scratch[stretto::conv_scratch<{kind}, S, {lanes}> + 1];"
        )
        per_group = found.out_channels // found.groups
        slabs = -(-per_group // height) * height
        template = f"conv_tile<{kind}, S, {height}, {lanes}>"
        end = f"int(({bottom}) * S::OW)"
        if found.groups == 1:
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
        self,
        found: Convolution,
        kind: str,
        image: str,
        first: str,
        last: str,
        top: str,
        bottom: str,
    ) -> None:
        self.out.write(f"for (int64_t c = {first}; c < {last}; ++c)")
        weights = self.base(found.weight, {})
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
