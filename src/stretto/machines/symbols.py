"""What the machines say that print code for fixed sizes."""

from __future__ import annotations

from stretto.errors import CodegenError
from stretto.ir.sizes import Atom, Size


def no_symbols(what: Atom | Size) -> CodegenError:
    """The refusal of a program with a size that is known at the call only."""
    return CodegenError(
        f"this machine does not run programs with symbolic sizes yet: {what}",
        remedy="compile for the sizes at hand, or run the program on the emulator",
    )
