"""Registers are assigned before they are used, on every way through the tree."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.errors import VerifyError
from stretto.kernels.expr import Access, Buffer, Expr, Reg, expr_regs, limit_register
from stretto.kernels.regions import statement_registers
from stretto.kernels.tree import Call, Check, For, If, Leaf, Let, Node, Seq, TreeFunction, While
from stretto.schedule.program import Run, Schedule
from stretto.schedule.touched import Touched


def check_registers(
    function: TreeFunction[Schedule],
    externals: Iterable[Buffer],
    touched: Touched,
) -> None:
    """Raises VerifyError for a register that is used before it is assigned.

    The machine sets those that hold the capacity of a list.
    """
    limits = {limit_register(buffer.slot).name for buffer in externals if buffer.kind == "list"}
    checker = _Checker(function.name, touched, frozenset(limits))
    end = checker.visit(function.body, frozenset(r.name for r in function.params))
    checker.require(end, (r.name for r in function.results), "the end of the function")


class _Checker:
    def __init__(self, function: str, touched: Touched, limits: frozenset[str]) -> None:
        self._function = function
        self._limits = limits
        self._touched = touched

    def require(self, assigned: frozenset[str], names: Iterable[str], where: str) -> None:
        for name in names:
            if name not in assigned and name not in self._limits:
                raise VerifyError(
                    f"register {name} may be used before it is assigned: {where} "
                    f"(function {self._function})"
                )

    def visit(self, node: Node[Schedule], assigned: frozenset[str]) -> frozenset[str]:
        """The registers that are assigned after the node."""
        match node:
            case Leaf(schedule):
                return self._leaf(schedule, assigned)
            case Seq(children):
                for child in children:
                    assigned = self.visit(child, assigned)
                return assigned
            case For(index, start, stop, _, body, _):
                self._require_expr(assigned, start, "start of a loop")
                self._require_expr(assigned, stop, "end of a loop")
                self.visit(body, assigned | {index.name})
                return assigned
            case While(head, condition, body, _):
                tested = self.visit(head, assigned)
                self.require(tested, (condition.name,), "condition of a loop")
                self.visit(body, tested)
                return tested
            case If(condition, then, orelse):
                self.require(assigned, (condition.name,), "condition of a branch")
                return self.visit(then, assigned) & self.visit(orelse, assigned)
            case Call(function, registers, tensors, results):
                for _, value in registers:
                    self._require_expr(assigned, value, f"call of {function}")
                for _, access in tensors:
                    self.require(assigned, _access_registers(access), f"call of {function}")
                return assigned | {mine.name for mine, _ in results}

    def _require_expr(self, assigned: frozenset[str], expr: Expr, where: str) -> None:
        self.require(assigned, (r.name for r in expr_regs(expr)), where)

    def _leaf(self, schedule: Schedule, assigned: frozenset[str]) -> frozenset[str]:
        end = assigned
        for items in schedule.units:
            current = assigned
            for item in items:
                match item:
                    case Run(kernel=name):
                        self.require(current, self._touched.registers(name), f"kernel {name}")
                    case Let(reg=register):
                        self.require(current, statement_registers(item), f"let {register.name}")
                        current = current | {register.name}
                    case Check():
                        self.require(current, statement_registers(item), "a check")
                    case _:
                        pass
            end = current
        return end


def _access_registers(access: Access) -> set[str]:
    return {atom.name for i in access.index for atom in i.atoms() if isinstance(atom, Reg)}
