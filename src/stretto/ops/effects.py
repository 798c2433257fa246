"""Effects: ops that must run exactly when control comes to them, whoever reads their results.

These are checks, which may stop the run, and draws of random numbers, which change the state of
their generator for whoever draws next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from stretto.ir.core import Function, Op, Program
from stretto.ir.ops import CallOp, CheckOp, ListGetOp, ListPopOp, ListSetOp, TensorOp, WhileOp
from stretto.ops.properties import is_random, stop_reason

# ---- Generators of random numbers that a Program names.
#
# An operator of a Program that draws has an argument `generator`: the name of a
# `torch.Generator`. Without one it draws from torch's default generator. Names are those of one
# process: a generator has no text.


_numbers = count(1)
_WEAK = bool(torch.Generator.__weakrefoffset__)
"""Whether generators can be referred to weakly. Where they cannot, before torch 2.13, those that a
Program names live as long as the process."""
_names: MutableMapping[torch.Generator, str] = WeakKeyDictionary() if _WEAK else {}
_generators: MutableMapping[str, torch.Generator] = WeakValueDictionary() if _WEAK else {}

States = tuple[tuple[torch.Generator, torch.Tensor], ...]


def generator_name(generator: torch.Generator) -> str:
    """The name by which Programs know a generator."""
    if generator not in _names:
        name = f"generator_{next(_numbers)}"
        _names[generator], _generators[name] = name, generator
    return _names[generator]


def generator_named(name: str | None) -> torch.Generator:
    """The generator of that name, without a name the default one. KeyError if it is gone."""
    return torch.default_generator if name is None else _generators[name]


def states_of(names: Iterable[str | None]) -> States:
    """The states of generators now."""
    found = map(generator_named, names)
    return tuple([(generator, generator.get_state()) for generator in found])


def restore(states: States) -> None:
    """Make the states what they were, as if nothing had been drawn since."""
    for generator, state in states:
        generator.set_state(state)


Predicate = Callable[[Op], bool]


def is_check(op: Op) -> bool:
    """A check, or an operator without results, which only checks values."""
    return isinstance(op, CheckOp) or (isinstance(op, TensorOp) and not op.results)


def is_draw(op: Op) -> bool:
    """Whether the op draws random numbers."""
    return isinstance(op, TensorOp) and is_random(op)


def states_drawn_from(program: Program) -> States:
    """The states now of the generators from which the program draws."""
    draws = (op for op in program.walk() if isinstance(op, TensorOp) and is_draw(op))
    names = (dict(op.kwargs).get("generator") for op in draws)
    return states_of(dict.fromkeys(None if name is None else str(name) for name in names))


def is_effect(op: Op) -> bool:
    """A check or a draw."""
    return is_check(op) or is_draw(op)


def may_stop(op: Op) -> bool:
    """An effect, or an op that eager PyTorch may refuse to run: it reads or writes at a position
    that may be out of range, or its operands may not be of the right values or sizes."""
    if isinstance(op, TensorOp):
        return is_effect(op) or stop_reason(op) is not None
    return is_effect(op) or isinstance(op, ListGetOp | ListSetOp | ListPopOp)


def has_effect(op: Op) -> bool:
    """Whether the op is an effect, or has one in its blocks. Calls are not followed."""
    nested = (inner for block in op.blocks for inner in block.walk())
    return is_effect(op) or any(is_effect(inner) for inner in nested)


def may_have_effect(op: Op) -> bool:
    """Whether the op itself has to run, or calls what may. Its blocks are not looked into."""
    return is_effect(op) or isinstance(op, WhileOp | CallOp)


def checking_functions(program: Program, checks: Predicate = is_effect) -> frozenset[str]:
    """The functions in which an effect or a `while` loop may run, also in what they call."""
    found: set[str] = set()
    before = -1
    while before != len(found):
        before = len(found)
        for name, function in program.functions.items():
            if name not in found and effectful(function, frozenset(found), checks):
                found.add(name)
    return frozenset(found)


def effectful(
    function: Function, checking: frozenset[str], checks: Predicate = is_effect
) -> set[Op]:
    """The ops of a function that must stay: effects, `while` loops, which may not end, calls of
    `checking` functions, and the control ops around them. `checks` says what is an effect."""
    found: set[Op] = set()

    def visit(op: Op) -> bool:
        inside = [visit(inner) for block in op.blocks for inner in block.ops]
        calls = isinstance(op, CallOp) and op.function in checking
        if checks(op) or isinstance(op, WhileOp) or calls or any(inside):
            found.add(op)
            return True
        return False

    for op in function.body.ops:
        visit(op)
    return found
