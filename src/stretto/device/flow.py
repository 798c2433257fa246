"""Data-flow analysis of control trees: the traversal to a fixpoint that all analyses share.

`Flow` goes in execution order, `Backward` against it. An analysis defines the effect of a leaf and
a call on its state, the state where two paths join, and the effect of swapping buffers at the end
of an iteration; a loop is walked until the state at its head no longer changes. States are
immutable: a rule returns a new one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar, cast

from stretto.device.expr import Buffer
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Loop,
    Node,
    Rotation,
    Seq,
    While,
    joined,
    rebuilt,
    trip_count,
)

L = TypeVar("L")
M = TypeVar("M")
S = TypeVar("S")


class Flow(ABC, Generic[L, M, S]):
    """A forward analysis, which may also replace the leaves that it visits."""

    def __init__(self) -> None:
        self._turned: dict[tuple[int, Hashable], tuple[Node[M], S]] = {}

    # ---- rules of an analysis ------------------------------------------------------------------
    @abstractmethod
    def leaf(self, body: L, state: S) -> tuple[M, S]:
        """Return the new leaf, and the state after it."""

    def call(self, call: Call[L], state: S) -> tuple[Node[M], S]:
        """Return the new call, and the state after it returns."""
        return cast("Call[M]", call), state

    @abstractmethod
    def merge(self, a: S, b: S) -> S:
        """Return a state that holds if either of two does."""

    def join(self, before: S, then: S, orelse: S) -> S:
        """Return the state after the arms of a branch; `before` is the state at the branch."""
        return self.merge(then, orelse)

    def rotate(self, state: S, pairs: Rotation) -> S:
        """Return the state after the buffers of each pair have been swapped."""
        return state

    def again(self, state: S, independent: tuple[Buffer, ...]) -> S:
        """Return the part of the state at the end of an iteration that matters to later
        iterations: the effects on `independent` buffers may be dropped."""
        return state

    def same(self, a: S, b: S) -> bool:
        return a == b

    def key(self, state: S) -> Hashable | None:
        """Return a key that is equal for equal states, so that no loop is walked twice from one
        state; None disables this."""
        return None

    def decide(self, node: Loop[L] | If[L], state: S) -> None:
        """Handle the read of a node's bounds or condition by the units."""

    def begin(self, node: For[L], state: S) -> S:
        """Return the state once the index of an iteration is assigned."""
        return state

    # ---- the walk ------------------------------------------------------------------------------
    def visit(self, node: Node[L], state: S) -> tuple[Node[M], S]:
        """Return the node with its new leaves, and the state after it."""
        match node:
            case Leaf(body):
                made, state = self.leaf(body, state)
                return Leaf(made), state
            case Seq(children):
                return self.sequence(children, state)
            case For() | While():
                return self.loop(node, state)
            case If(_, then, orelse):
                self.decide(node, state)
                first, one = self.visit(then, state)
                second, other = self.visit(orelse, state)
                return rebuilt(node, (first, second)), self.join(state, one, other)
            case Call():
                return self.call(node, state)

    def sequence(self, children: Sequence[Node[L]], state: S) -> tuple[Node[M], S]:
        made: list[Node[M]] = []
        for child in children:
            one, state = self.visit(child, state)
            made.append(one)
        return joined(made), state

    def loop(self, node: Loop[L], state: S) -> tuple[Node[M], S]:
        """Return the new loop, and the state after it."""
        found = self.key(state)
        if found is None:
            return self._turns(node, state)
        key = id(node), found
        if key not in self._turned:
            self._turned[key] = self._turns(node, state)
        return self._turned[key]

    def _turns(self, node: Loop[L], start: S) -> tuple[Node[M], S]:
        while True:
            made, after, end = self._turn(node, start)
            known = self.again(end, node.independent) if isinstance(node, For) else end
            either = self.merge(start, self.rotate(known, node.rotate))
            if self.same(either, start):
                return made, after
            start = either

    def _turn(self, node: Loop[L], start: S) -> tuple[Node[M], S, S]:
        """Walk one iteration; return the loop, the state after it, and the state at the end of the
        body."""
        match node:
            case For(body=body):
                self.decide(node, start)
                walked, end = self.visit(body, self.begin(node, start))
                after = self.rotate(end, node.rotate) if trip_count(node) else start
                if node.independent:  # `again` dropped effects from the state at the head
                    after = self.merge(start, self.rotate(end, node.rotate))
                return rebuilt(node, (walked,)), after, end
            case While(head=head, body=body):
                tested, after = self.visit(head, start)
                self.decide(node, after)
                walked, end = self.visit(body, after)
                return rebuilt(node, (tested, walked)), after, end


class Facts(Flow[L, L, S]):
    """A forward analysis that leaves the tree unchanged."""

    def leaf(self, body: L, state: S) -> tuple[L, S]:
        return body, self.after(body, state)

    @abstractmethod
    def after(self, body: L, state: S) -> S:
        """Return the state after a leaf."""

    def end(self, node: Node[L], state: S) -> S:
        """Return the state after a node."""
        return self.visit(node, state)[1]


class Backward(ABC, Generic[L, S]):
    """A backward analysis: its state describes what will happen from a node on."""

    @abstractmethod
    def leaf(self, body: L, after: S) -> S:
        """Return the state before a leaf."""

    @abstractmethod
    def call(self, call: Call[L], after: S) -> S:
        """Return the state before a call."""

    @abstractmethod
    def merge(self, a: S, b: S) -> S:
        """Return a state that holds if either of two does."""

    def rotate(self, state: S, pairs: Rotation) -> S:
        return state

    def decide(self, node: Loop[L] | If[L], after: S) -> S:
        """Return the state before the units read the bounds or the condition of a node."""
        return after

    def begin(self, node: For[L], after: S) -> S:
        """Return the state before the index of an iteration is assigned."""
        return after

    def visit(self, node: Node[L], after: S) -> S:
        """Return the state before a node, given the state after it."""
        match node:
            case Leaf(body):
                return self.leaf(body, after)
            case Seq(children):
                for child in reversed(children):
                    after = self.visit(child, after)
                return after
            case For(body=body, rotate=pairs):

                def iteration(now: S) -> S:
                    return self.begin(node, self.visit(body, self.rotate(now, pairs)))

                head = self._fixpoint(after, iteration)
                # With a nonzero trip count the body surely runs; it is walked in either case,
                # since a body that never runs is still part of the text.
                return self.decide(node, iteration(head) if trip_count(node) else head)
            case While(head=head, body=body, rotate=pairs):

                def turn(now: S) -> S:
                    again = self.visit(body, self.rotate(now, pairs))
                    return self.visit(head, self.decide(node, self.merge(again, after)))

                return self._fixpoint(self.visit(head, self.decide(node, after)), turn)
            case If(then=then, orelse=orelse):
                arms = self.visit(then, after), self.visit(orelse, after)
                return self.decide(node, self.merge(*arms))
            case Call():
                return self.call(node, after)

    def _fixpoint(self, start: S, turn: Callable[[S], S]) -> S:
        while True:
            either = self.merge(start, turn(start))
            if either == start:
                return start
            start = either
