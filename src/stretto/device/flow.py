"""The walk that all analyses of a control tree share: what is known goes through it, to a fixpoint.

`Flow` goes in the order of the run, `Backward` against it. An analysis says what a leaf and a call
do to its state, what holds where two ways meet, and what it means that buffers trade places at the
end of an iteration; a loop is walked until the state at its head no longer changes. States are
values: a rule gives a new one.
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
    """An analysis in the order of the run, which may make other leaves of those that it sees."""

    def __init__(self) -> None:
        self._turned: dict[tuple[int, Hashable], tuple[Node[M], S]] = {}

    # ---- what an analysis says -----------------------------------------------------------------
    @abstractmethod
    def leaf(self, body: L, state: S) -> tuple[M, S]:
        """The leaf, and what holds after it."""

    def call(self, call: Call[L], state: S) -> tuple[Node[M], S]:
        """The call, and what holds when it has returned."""
        return cast("Call[M]", call), state

    @abstractmethod
    def merge(self, a: S, b: S) -> S:
        """What holds when either may be true."""

    def join(self, before: S, then: S, orelse: S) -> S:
        """What holds after the arms of a branch at which `before` held."""
        return self.merge(then, orelse)

    def rotate(self, state: S, pairs: Rotation) -> S:
        """What holds when the buffers of each pair have traded places."""
        return state

    def again(self, state: S, independent: tuple[Buffer, ...]) -> S:
        """What an iteration need know of those before it: nothing about what they do to buffers in
        which they are independent of it."""
        return state

    def same(self, a: S, b: S) -> bool:
        return a == b

    def key(self, state: S) -> Hashable | None:
        """Equal for equal states, so that no loop is walked twice from one; None: unknown."""
        return None

    def decide(self, node: Loop[L] | If[L], state: S) -> None:
        """The units read the bounds or the condition of a node."""

    def begin(self, node: For[L], state: S) -> S:
        """What holds when an iteration has its index."""
        return state

    # ---- the walk ------------------------------------------------------------------------------
    def visit(self, node: Node[L], state: S) -> tuple[Node[M], S]:
        """The node with its leaves, and what holds after it."""
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
        """The loop, and what holds after it."""
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
        """One iteration: the loop, what holds after it, and at the end of the body."""
        match node:
            case For(body=body):
                self.decide(node, start)
                walked, end = self.visit(body, self.begin(node, start))
                after = self.rotate(end, node.rotate) if trip_count(node) else start
                if node.independent:  # then the state at the head has not all that was done
                    after = self.merge(start, self.rotate(end, node.rotate))
                return rebuilt(node, (walked,)), after, end
            case While(head=head, body=body):
                tested, after = self.visit(head, start)
                self.decide(node, after)
                walked, end = self.visit(body, after)
                return rebuilt(node, (tested, walked)), after, end


class Facts(Flow[L, L, S]):
    """An analysis that leaves the tree as it is."""

    def leaf(self, body: L, state: S) -> tuple[L, S]:
        return body, self.after(body, state)

    @abstractmethod
    def after(self, body: L, state: S) -> S:
        """What holds after a leaf."""

    def end(self, node: Node[L], state: S) -> S:
        """What holds after a node."""
        return self.visit(node, state)[1]


class Backward(ABC, Generic[L, S]):
    """An analysis against the order of the run: what will happen from a node on."""

    @abstractmethod
    def leaf(self, body: L, after: S) -> S:
        """What holds before a leaf."""

    @abstractmethod
    def call(self, call: Call[L], after: S) -> S:
        """What holds before a call."""

    @abstractmethod
    def merge(self, a: S, b: S) -> S:
        """What holds when either may be true."""

    def rotate(self, state: S, pairs: Rotation) -> S:
        return state

    def decide(self, node: Loop[L] | If[L], after: S) -> S:
        """What holds before the units read the bounds or the condition of a node."""
        return after

    def begin(self, node: For[L], after: S) -> S:
        """What holds before an iteration is given its index."""
        return after

    def visit(self, node: Node[L], after: S) -> S:
        """What holds before a node, given what holds after it."""
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
                # Of a loop that never runs the body is still part of the text.
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
