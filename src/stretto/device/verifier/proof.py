"""What a verification has proved, for which sizes."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.sizes import Symbol


@dataclass(frozen=True, slots=True)
class Proof:
    """That a program keeps the rules for all values of its symbols, in the ranges that they have.

    in_range: accesses that depend on symbols and were proved to be in range. at_run: those whose
    positions only the run can tell, which it checks.
    """

    symbols: tuple[Symbol, ...] = ()
    in_range: int = 0
    at_run: int = 0

    def __str__(self) -> str:
        if not self.symbols:
            return "for its sizes"
        ranges = ", ".join(symbol.declaration for symbol in self.symbols)
        text = f"for {ranges}: {self.in_range} accesses in range"
        return f"{text}, {self.at_run} checked in the run" if self.at_run else text
