"""What `library_choice` has chosen: which products torch computes, and the times behind that."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.ops import TensorOp
from stretto.text import counted, seconds_text


@dataclass(frozen=True, slots=True)
class Product:
    """Products of one place of the user's program. name: of the place and the operator. nested:
    whether they are in a loop, a branch or a function. own, library: estimated seconds of one of
    them by our kernel and by the library's, with the gap behind it."""

    name: str
    ops: tuple[TensorOp, ...]
    nested: bool
    own: float
    library: float

    @property
    def gain(self) -> float:
        return (self.own - self.library) * len(self.ops)


@dataclass(frozen=True, slots=True)
class LibraryChoice:
    """What was chosen, and why. looked_at: all products that the library could compute. tried:
    of each program that was planned, how many products the library computes in it, and its
    simulated seconds; our own kernels alone come first. taken: what the library computes."""

    looked_at: tuple[Product, ...]
    tried: tuple[tuple[int, float], ...] = ()
    taken: tuple[Product, ...] = ()
    reason: str = ""

    def text(self) -> str:
        """For `explain()`."""
        count = sum(len(product.ops) for product in self.taken)
        whole = sum(len(product.ops) for product in self.looked_at)
        head = f"{count} of {counted(whole, 'product')} by the library"
        if self.reason:
            return f"{head}: {self.reason}"
        tried = "; ".join(
            f"{counted(count, 'library call')} {seconds_text(seconds)}"
            for count, seconds in self.tried
        )
        return f"{head}; simulated: {tried}"

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Of each product: its name, how many, both estimates, and who computes it."""
        taken = set(map(id, self.taken))
        return [
            (
                product.name + (" (in a loop, branch or function)" if product.nested else ""),
                str(len(product.ops)),
                seconds_text(product.own),
                seconds_text(product.library),
                "library" if id(product) in taken else "own kernel",
            )
            for product in self.looked_at
        ]


PRODUCT_HEADERS = ("product", "count", "own kernel", "library and gap", "computed by")
