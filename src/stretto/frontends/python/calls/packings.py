"""Where the items of a packed sequence stand in a matrix of all steps by all sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.frontends.python.tracing.contents import known_content
from stretto.frontends.python.tracing.tracer import data_dependent_shape, tracer


@dataclass(frozen=True, slots=True)
class Packing:
    """Where items stand, which is known when the program is captured.

    items: for each place of the matrix an item; any item where the sequence has ended.
    places: for each item its place in the matrix, counted row by row.
    active: which places have an item, with a dim for the features. None if all have.
    """

    items: Tensor
    places: Tensor
    active: Tensor | None

    @staticmethod
    def of(batch_sizes: Tensor) -> Packing:
        """Of the number of sequences that each step has an item of."""
        known = known_content(batch_sizes)
        if known is None:
            raise data_dependent_shape("the number of items of a packed sequence")
        with tracer().native():
            columns = torch.arange(max(known.tolist(), default=0))
            active = columns < known[:, None]
            starts = known.cumsum(0) - known
            items = torch.where(active, starts[:, None] + columns, 0)
            places = active.flatten().nonzero().flatten()
            return Packing(items, places, None if active.all() else active[..., None])

    def spread(self, data: Tensor) -> Tensor:
        """The items as a tensor of steps, sequences and features."""
        if self.active is None:
            return data.unflatten(0, self.items.shape)
        return data[self.items]

    def packed(self, rows: Tensor) -> Tensor:
        """The inverse of `spread`."""
        flat = rows.flatten(0, 1)
        return flat if self.active is None else flat[self.places]
