"""Recurrent layers as ordinary loops over time.

`nn.RNN`, `nn.LSTM` and `nn.GRU` call one ATen operator for all layers and steps, which torch
decomposes into unrolled steps. Here they become loops captured like a user's: the input
projections of a layer are one product before its loop.

In a packed sequence, a step has rows only for the sequences that have not ended. Its loop
computes all rows of all steps, and leaves the state of a sequence unchanged where it has no
item: before its first step in the reverse direction, after its last one otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from stretto.frontends.python.lists import indexing
from stretto.frontends.python.operators import decompositions
from stretto.frontends.python.operators.replacements import (
    RecurrentCell,
    State,
    Step,
    elman,
    gru,
    lstm,
)
from stretto.frontends.python.tracing.contents import known_content
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import data_dependent_shape, tracer
from stretto.frontends.python.values.data_dependent_sizes import is_decided, plain
from stretto.frontends.python.values.raises import check

# ---- Positions of the items of a packed sequence in a matrix of steps by sequences.


@dataclass(frozen=True, slots=True)
class SequencePacking:
    """Positions of the items of a packed sequence, known at capture.

    items: for each [step, sequence] the number of an item; any item after the end of the
    sequence. places: for each item its position in that matrix, counted row by row. active:
    bool [steps, sequences, 1], True where there is an item; None if all have one.
    """

    items: Tensor
    places: Tensor
    active: Tensor | None

    @staticmethod
    def of(batch_sizes: Tensor) -> SequencePacking:
        """Make the packing for the number of sequences at each step. Fails if it is not known at
        capture."""
        known = known_content(batch_sizes)
        if known is None:
            raise data_dependent_shape("the number of items of a packed sequence")
        with tracer().native():
            columns = torch.arange(max(known.tolist(), default=0))
            active = columns < known[:, None]
            starts = known.cumsum(0) - known
            items = torch.where(active, starts[:, None] + columns, 0)
            places = active.flatten().nonzero().flatten()
            return SequencePacking(items, places, None if active.all() else active[..., None])

    def spread(self, data: Tensor) -> Tensor:
        """Return the items as a tensor [steps, sequences, features]."""
        if self.active is None:
            return data.unflatten(0, self.items.shape)
        return data[self.items]

    def packed(self, rows: Tensor) -> Tensor:
        """Return the items of a tensor [steps, sequences, features]: the inverse of `spread`."""
        flat = rows.flatten(0, 1)
        return flat if self.active is None else flat[self.places]


aten = torch.ops.aten

_NO_STEPS = "Expected sequence length to be larger than 0 in RNN"


def _over_time(cell: RecurrentCell, rows: Any, state: State) -> tuple[Tensor, State]:
    """Return the hidden states of all steps, and the last state."""
    hidden: Any = []
    for row in rows:
        state = cell.step(cell, row, state)
        hidden.append(state[0])
    return torch.stack(hidden), state


def _over_active(cell: RecurrentCell, rows: Any, active: Any, state: State) -> tuple[Tensor, State]:
    """Return the same as `_over_time`; at each step only the rows marked active have an item."""
    hidden: Any = []
    for row, is_active in zip(rows, active, strict=True):
        state = _where(is_active, cell.step(cell, row, state), state)
        hidden.append(state[0])
    return torch.stack(hidden), state


def _where(flags: Tensor, state: State, other: State) -> State:
    return tuple(torch.where(flags, *both) for both in zip(state, other, strict=True))


def _direction(
    cell: RecurrentCell, inputs: Tensor, state: State, active: Tensor | None, *, reverse: bool
) -> tuple[Tensor, State]:
    """Run one direction of one layer."""
    rows = F.linear(inputs, cell.input_weight, cell.input_bias)
    rows = rows.flip(0) if reverse else rows
    if active is None:
        hidden, last = Hooks.own(_over_time)(cell, rows, state)
    else:
        active = active.flip(0) if reverse else active
        hidden, last = Hooks.own(_over_active)(cell, rows, active, state)
    return hidden.flip(0) if reverse else hidden, last


@dataclass(frozen=True, slots=True)
class Layers:
    """Arguments of a recurrent operator. cells: per layer, one cell per direction."""

    cells: list[list[RecurrentCell]]
    dropout: float
    train: bool

    def run(
        self, inputs: Tensor, states: Sequence[Tensor], active: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the hidden states of the last layer, and the last states of all layers.

        inputs: [steps, sequences, features]. active: bool [steps, sequences, 1], True where a
        sequence has an item; None if all have.
        """
        steps: Any = inputs.shape[0]
        if is_decided(steps):
            check(plain(steps) > 0, "RuntimeError", _NO_STEPS)
        elif steps == 0:
            raise RuntimeError(_NO_STEPS)
        lasts = list[State]()
        for layer in self.cells:
            if lasts and self.train and self.dropout:
                if active is not None:
                    fail(
                        "dropout between layers is not captured for packed sequences",
                        "call eval() on the module before compiling",
                    )
                inputs = torch.dropout(inputs, self.dropout, True)
            outputs = list[Tensor]()
            for cell in layer:
                state = tuple(every[len(lasts)] for every in states)
                output, last = _direction(cell, inputs, state, active, reverse=bool(outputs))
                outputs.append(output)
                lasts.append(last)
            inputs = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return inputs, *(torch.stack(every) for every in zip(*lasts, strict=True))


def layers_of(
    step: Step,
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Layers:
    """Group the flat weights of a recurrent module into cells by layer and direction."""
    directions = 2 if bidirectional else 1
    per_cell = len(params) // (layers * directions)
    made = list[RecurrentCell]()
    for first in range(0, len(params), per_cell):
        weights = params[first : first + per_cell]
        into, onto = weights[2:4] if has_biases else (None, None)
        projection = weights[-1] if per_cell % 2 else None
        made.append(RecurrentCell(step, weights[0], weights[1], into, onto, projection))
    split = range(0, len(made), directions)
    return Layers([made[first : first + directions] for first in split], dropout, train)


def _whole(step: Step) -> Callable[..., tuple[Tensor, ...]]:
    """Return the rule of an operator on tensors [steps, sequences, features], or batch first."""

    def rule(inputs: Tensor, states: Any, *arguments: Any) -> tuple[Tensor, ...]:
        states = (states,) if isinstance(states, torch.Tensor) else states
        *options, batch_first = arguments
        inputs = inputs.transpose(0, 1) if batch_first else inputs
        output, *lasts = layers_of(step, *options).run(inputs, states)
        return output.transpose(0, 1) if batch_first else output, *lasts

    return rule


def _packed(step: Step) -> Callable[..., tuple[Tensor, ...]]:
    """Return the rule of an operator on packed sequences."""

    def rule(data: Tensor, batch_sizes: Tensor, states: Any, *options: Any) -> tuple[Tensor, ...]:
        states = (states,) if isinstance(states, torch.Tensor) else states
        packing = SequencePacking.of(batch_sizes)
        output, *lasts = layers_of(step, *options).run(packing.spread(data), states, packing.active)
        return packing.packed(output), *lasts

    return rule


STEPS: dict[Any, Step] = {
    aten.rnn_tanh: elman(torch.tanh),
    aten.rnn_relu: elman(torch.relu),
    aten.gru: gru,
    aten.lstm: lstm,
}

RECURRENT: dict[Any, Callable[..., Any]] = {
    **{packet.input: _whole(step) for packet, step in STEPS.items()},
    **{packet.data: _packed(step) for packet, step in STEPS.items()},
}


# ---- Packed sequences, represented by the padded tensor that they were packed from.
#
# A recurrent module then needs no items: its loop runs over all steps, with a mask of the sequences
# that have not ended. Sequences stay in their order, as sorting changes no result. The fields of a
# packed sequence are computed only if the program reads them; if the lengths are a tensor, data
# decide the sizes of these fields.


_UNSORTED = (
    "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can "
    "pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this "
    "requirement if you do not need ONNX exportability."
)
_EMPTY = (
    "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
)
_TOO_LONG = "a length is greater than the number of steps of the padded tensor"
_CUT = (
    "Expected total_length to be at least the length of the longest sequence in input, but got "
    "total_length={} and a sequence that is longer"
)


@dataclass(frozen=True, slots=True, eq=False)
class PaddedSequence:
    """Represents a PackedSequence by rows [steps, sequences, *] and a length per sequence.

    source: the packed sequence that it was made from, if the caller passed one. count: number
    of sequences if only the run knows it; those from `count` on have no items.
    """

    rows: Tensor
    lengths: Tensor
    is_sorted: bool
    source: PackedSequence | None = None
    count: Any = None

    def items(self) -> PackedSequence:
        """Return the packed sequence that eager PyTorch has."""
        return PackedSequence(*self)

    def active(self) -> Tensor:
        """Return bools [steps, sequences], True where a sequence has an item."""
        return torch.arange(self.rows.shape[0]).unsqueeze(-1) < self.lengths

    @property
    def is_full(self) -> bool:
        """True if all sequences are known to be as long as the padded tensor."""
        if self.source is not None:
            return False
        known = known_content(self.lengths)
        if known is None:
            return False
        with tracer().native():
            return bool((known == self.rows.shape[0]).all())

    @property
    def longest(self) -> Any:
        """Number of steps that have an item."""
        if self.source is not None:
            return self.rows.shape[0]
        known = known_content(self.lengths)
        if known is None:
            return self.lengths.max()
        with tracer().native():
            return int(known.max())

    @property
    def sorted_indices(self) -> Tensor | None:
        if self.source is not None:
            return self.source.sorted_indices
        return None if self.is_sorted else torch.sort(self.lengths, descending=True)[1]

    @property
    def unsorted_indices(self) -> Tensor | None:
        if self.source is not None:
            return self.source.unsorted_indices
        return rnn.invert_permutation(self.sorted_indices)

    @property
    def batch_sizes(self) -> Tensor:
        """Number of sequences that have an item, for each step."""
        if self.source is not None:
            return self.source.batch_sizes
        known = known_content(self.lengths)
        if known is None:
            return _first_steps(self.active().sum(1), self.longest)
        with tracer().native():
            sizes = (torch.arange(int(known.max())).unsqueeze(-1) < known).sum(1)
        return aten.lift_fresh.default(sizes)

    @property
    def data(self) -> Tensor:
        """The items in the order of a PackedSequence: step by step, sequences sorted by length."""
        order = self.sorted_indices
        rows = self.rows if order is None else self.rows.index_select(1, order)
        if self.source is not None:
            return rows[_places_of(self.source)]
        known = known_content(self.lengths)
        if known is None:
            lengths = self.lengths if order is None else self.lengths[order]
            return rows[torch.arange(rows.shape[0]).unsqueeze(-1) < lengths]
        return SequencePacking.of(self.batch_sizes).packed(rows[: self.longest])

    def __iter__(self) -> Iterator[Any]:
        return iter((self.data, self.batch_sizes, self.sorted_indices, self.unsorted_indices))

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]


def _places_of(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """Return the step and the sequence of each item, in the order of the items."""
    ends = packed.batch_sizes.cumsum(0)
    items = torch.arange(packed.data.shape[0])
    steps = torch.searchsorted(ends, items, right=True)
    return steps, items - (ends - packed.batch_sizes)[steps]


def _first_steps(rows: Tensor, count: Any) -> Tensor:
    if isinstance(count, TracedTensor):
        return indexing.getitem(rows, slice(None, count))  # type: ignore[arg-type]
    return rows[:count]


def _first_sequences(rows: Tensor, count: Any) -> Tensor:
    """Keep the first `count` sequences (dim 1); all if None."""
    if count is None:
        return rows
    return indexing.getitem(rows, (slice(None), slice(None, count)))  # type: ignore[arg-type]


# ---- packing and padding -------------------------------------------------------------------------


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> Any:
    """Rule of `torch.nn.utils.rnn.pack_padded_sequence`: nothing is packed, a PaddedSequence is
    returned."""
    lengths = _as_tensor(lengths)
    rows = input.transpose(0, 1) if batch_first else input
    if lengths.dim() != 1:
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D cpu Long tensor"
        )
    if lengths.shape[0] != rows.shape[1]:
        raise RuntimeError(
            "Expected `len(lengths)` to be equal to batch_size, but got "
            f"{lengths.shape[0]} (batch_size={rows.shape[1]})"
        )
    _expect(lengths, lambda n: (n > 0).all(), "RuntimeError", _EMPTY)
    if enforce_sorted:
        _expect(lengths, lambda n: (n[1:] <= n[:-1]).all(), "RuntimeError", _UNSORTED)
    steps = rows.shape[0]
    _expect(lengths, lambda n: (n <= steps).all(), "RuntimeError", _TOO_LONG)
    return PaddedSequence(rows, lengths, enforce_sorted)


def pack_sequence(sequences: list[Tensor], enforce_sorted: bool = True) -> Any:
    """Rule of `torch.nn.utils.rnn.pack_sequence`."""
    lengths = [sequence.shape[0] for sequence in sequences]
    return pack_padded_sequence(rnn.pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def _as_tensor(lengths: Any) -> Tensor:
    if isinstance(lengths, torch.Tensor):
        return lengths.to(torch.int64)
    if any(isinstance(item, torch.Tensor) for item in lengths):
        return torch.stack([torch.as_tensor(item) for item in lengths]).to(torch.int64)
    return torch.as_tensor(lengths, dtype=torch.int64)


def _expect(lengths: Tensor, holds: Callable[[Tensor], Tensor], error: str, message: str) -> None:
    """Check the lengths: raise eager's error now if they are known, else when the program runs."""
    known = known_content(lengths)
    if known is None:
        check(holds(lengths), error, message)
        return
    with tracer().native():
        is_right = bool(holds(known))
    if not is_right:
        raise ValueError(message) if error == "ValueError" else RuntimeError(message)


def pad_packed_sequence(
    sequence: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> Any:
    """Rule of `torch.nn.utils.rnn.pad_packed_sequence`: returns the padded rows and the lengths."""
    packed = _padded(sequence)
    if packed is None:
        return NotImplemented
    rows = packed.rows
    active = packed.active().reshape([*rows.shape[:2], *[1] * (rows.dim() - 2)])
    rows = torch.where(active, rows, padding_value)
    if total_length is None:
        rows = _first_steps(rows, packed.longest)
    else:
        total = total_length
        cut = _CUT.format(total)
        _expect(packed.lengths, lambda n: (n <= total).all(), "ValueError", cut)
        missing = max(total - rows.shape[0], 0)
        rows = F.pad(rows[:total], (0, 0) * (rows.dim() - 1) + (0, missing), value=padding_value)
    rows = _first_sequences(rows, packed.count)
    lengths = packed.lengths if packed.count is None else _first_steps(packed.lengths, packed.count)
    return rows.transpose(0, 1) if batch_first else rows, lengths.clone()


def unpack_sequence(packed_sequences: Any) -> Any:
    """Rule of `torch.nn.utils.rnn.unpack_sequence`."""
    packed = _padded(packed_sequences)
    if packed is None:
        return NotImplemented
    known = known_content(packed.lengths)
    lengths = packed.lengths if known is None else known.tolist()
    columns = range(packed.rows.shape[1])
    return [_first_steps(packed.rows[:, place], lengths[place]) for place in columns]


def _padded(sequence: Any, width: int | None = None) -> PaddedSequence | None:
    """Return a packed sequence in padded form; None for anything else. width: number of sequences,
    if known."""
    if isinstance(sequence, PaddedSequence):
        return sequence
    if not isinstance(sequence, PackedSequence):
        return None
    sizes = known_content(sequence.batch_sizes)
    if sizes is None:
        return _given(sequence, width)
    rows = SequencePacking.of(sizes).spread(sequence.data)
    with tracer().native():
        lengths = (sizes.unsqueeze(-1) > torch.arange(int(sizes[0]))).sum(0)
    lengths = aten.lift_fresh.default(lengths)
    order = sequence.unsorted_indices
    if order is None:
        return PaddedSequence(rows, lengths, True)
    return PaddedSequence(rows.index_select(1, order), lengths[order], False)


def _given(packed: PackedSequence, width: int | None) -> PaddedSequence:
    """Return the padded form of a packed sequence of the caller's with unknown lengths.

    The number of sequences, if it is not known, is bounded: each step after the first has at
    least one item, so it is at most the number of items less that of these steps.
    """
    sizes, order, count = packed.batch_sizes, packed.unsorted_indices, None
    if order is not None:
        width = order.shape[0]
    elif width is None:
        width, count = packed.data.shape[0] - sizes.shape[0] + 1, sizes[0]
    columns = torch.arange(width)
    active = columns < sizes.unsqueeze(-1)
    starts = (sizes.cumsum(0) - sizes).unsqueeze(-1)
    rows, lengths = packed.data[torch.where(active, starts + columns, 0)], active.sum(0)
    if order is not None:
        rows, lengths = rows.index_select(1, order), lengths[order]
    return PaddedSequence(rows, lengths, order is None, packed, count)


# ---- recurrent modules ---------------------------------------------------------------------------


def _forward(module: nn.RNNBase, input: Any, hx: Any = None) -> Any:
    """Rule of the `forward` of recurrent modules for packed sequences; NotImplemented for
    others."""
    is_lstm = isinstance(module, nn.LSTM)
    states = hx if is_lstm or hx is None else (hx,)
    packed = _padded(input, None if states is None else states[0].shape[1])
    if packed is None:
        return NotImplemented
    rows = packed.rows
    if hx is None:
        count = module.num_layers * (2 if module.bidirectional else 1)
        sizes = [module.proj_size or module.hidden_size, module.hidden_size]
        hidden, cell = (rows.new_zeros(count, rows.shape[1], size) for size in sizes)
        hx = (hidden, cell) if is_lstm else hidden
    _check_arguments(module, rows, hx)
    layers = layers_of(
        STEPS[_OPERATORS[module.mode]],
        module._flat_weights,  # type: ignore[arg-type]
        module.bias, module.num_layers, module.dropout, module.training, module.bidirectional,
    )  # fmt: skip
    active = None if packed.is_full else packed.active().unsqueeze(-1)
    output, *lasts = layers.run(rows, hx if is_lstm else (hx,), active)
    made = replace(packed, rows=output)
    lasts = [_first_sequences(last, packed.count) for last in lasts]
    return made, tuple(lasts) if is_lstm else lasts[0]


def _check_arguments(module: nn.RNNBase, rows: Tensor, states: Any) -> None:
    """Raise what eager's check of arguments raises. The rows are checked as a padded tensor: for
    packed data eager reads the first batch size as an int."""
    if rows.dim() == 3:
        given = rows.transpose(0, 1) if module.batch_first else rows
        module.check_forward_args(given, states, None)
    else:
        module.check_forward_args(rows.flatten(0, 1), states, [rows.shape[1]])  # type: ignore[arg-type]


_OPERATORS = {
    "LSTM": aten.lstm,
    "GRU": aten.gru,
    "RNN_TANH": aten.rnn_tanh,
    "RNN_RELU": aten.rnn_relu,
}

PACKED: dict[Any, Callable[..., Any]] = {
    rnn.pack_padded_sequence: pack_padded_sequence,
    rnn.pack_sequence: pack_sequence,
    rnn.pad_packed_sequence: pad_packed_sequence,
    rnn.unpack_sequence: unpack_sequence,
    nn.LSTM.forward: _forward,
    nn.GRU.forward: _forward,
    nn.RNN.forward: _forward,
}


decompositions.RULES.update(RECURRENT)
