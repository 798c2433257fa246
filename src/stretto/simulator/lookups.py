"""Which of the numbers that a unit loads for itself cost it a latency of their own.

A register is not waited for where it is loaded, but where it is used. So what is loaded behind one
another is under way at once, as long as no address among them, and nothing that is checked, depends
on what has been loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.device.expr import Reg, loads
from stretto.device.regions import statement_reads
from stretto.device.tree import Check, Let


@dataclass(slots=True)
class Lookups:
    """A row of register statements. coming: the registers that are loaded or made from such."""

    coming: set[Reg] = field(default_factory=set[Reg])

    def end(self) -> None:
        """Something else comes, or control is decided: what is under way arrives."""
        self.coming.clear()

    def starts(self, item: Let | Check) -> bool:
        """Takes in the next statement; whether it loads, and what came before has arrived."""
        reads = any(True for expr in item.exprs for _ in loads(expr))
        depends = not self.coming.isdisjoint(statement_reads(item))
        starts = reads and (depends or not self.coming)
        if depends and (reads or isinstance(item, Check)):
            self.end()
        if isinstance(item, Let) and (reads or depends):
            self.coming.add(item.reg)
        return starts
