"""Effects: ops that must run exactly when control reaches them, even if nothing reads their
results.

These are checks, which may stop the run, and draws of random numbers, which change the state of
their generator and so all later draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from stretto.components import reachable
from stretto.ir.call_graph import call_graph
from stretto.ir.core import Function, Op, Program
from stretto.ir.data import CHANGES, ERRORS, AssignOp
from stretto.ir.ops import CallOp, CheckOp, ListGetOp, ListPopOp, ListSetOp, TensorOp, WhileOp
from stretto.ops.properties import is_random, stop_reason

# ---- Generators of random numbers that a Program refers to ------------------------------------
#
# An operator of a Program that draws random numbers has an argument `generator`: the name of a
# `torch.Generator`. Without it, it draws from torch's default generator. Names are valid in one
# process only, since a generator cannot be printed.


_numbers = count(1)
_WEAK = bool(torch.Generator.__weakrefoffset__)
"""True if generators can have weak references. Before torch 2.13 they cannot, so those that a
Program refers to live as long as the process."""
_names: MutableMapping[torch.Generator, str] = WeakKeyDictionary() if _WEAK else {}
_generators: MutableMapping[str, torch.Generator] = WeakValueDictionary() if _WEAK else {}

States = tuple[tuple[torch.Generator, torch.Tensor], ...]


def generator_name(generator: torch.Generator) -> str:
    """Return the name of a generator in Programs."""
    if generator not in _names:
        name = f"generator_{next(_numbers)}"
        _names[generator], _generators[name] = name, generator
    return _names[generator]


def generator_named(name: str | None) -> torch.Generator:
    """Return the generator of that name, for None the default one; raise KeyError if it is gone."""
    return torch.default_generator if name is None else _generators[name]


def states_of(names: Iterable[str | None]) -> States:
    """Return the current states of generators."""
    found = map(generator_named, names)
    return tuple([(generator, generator.get_state()) for generator in found])


def restore(states: States) -> None:
    """Reset the generators to these states, as if nothing had been drawn since."""
    for generator, state in states:
        generator.set_state(state)


Predicate = Callable[[Op], bool]


def is_check(op: Op) -> bool:
    """True for a check, or an operator without results, which only checks values."""
    return isinstance(op, CheckOp) or (isinstance(op, TensorOp) and not op.results)


def is_draw(op: Op) -> bool:
    """True if the op draws random numbers."""
    return isinstance(op, TensorOp) and is_random(op)


def states_drawn_from(program: Program) -> States:
    """Return the current states of the generators that the program draws from."""
    draws = (op for op in program.walk() if isinstance(op, TensorOp) and is_draw(op))
    names = (dict(op.kwargs).get("generator") for op in draws)
    return states_of(dict.fromkeys(None if name is None else str(name) for name in names))


def is_effect(op: Op) -> bool:
    """True for a check, a draw, or an op that changes data."""
    return is_check(op) or is_draw(op) or (isinstance(op, AssignOp) and op.op in CHANGES)


def may_stop(op: Op) -> bool:
    """True for an effect, or an op that eager PyTorch may refuse to run: a position may be out of
    range, or its operands may have wrong values or sizes."""
    if isinstance(op, TensorOp):
        return is_effect(op) or stop_reason(op) is not None
    if isinstance(op, AssignOp):
        return op.op in CHANGES or op.op in ERRORS
    return is_effect(op) or isinstance(op, ListGetOp | ListSetOp | ListPopOp)


def has_effect(op: Op) -> bool:
    """True if the op is an effect, or has one in its blocks. Calls are not followed."""
    return any(map(is_effect, op.walk()))


def may_have_effect(op: Op) -> bool:
    """True if the op itself must run, or calls a function that may have to. Blocks are not
    examined."""
    return is_effect(op) or isinstance(op, WhileOp | CallOp)


def checking_functions(program: Program, checks: Predicate = is_effect) -> frozenset[str]:
    """Return the functions in which an effect or a `while` loop may run, their callees included."""
    graph, functions = call_graph(program), program.functions
    themselves = {name for name in graph if effectful(functions[name], frozenset(), checks)}
    return frozenset(name for name in graph if themselves & reachable((name,), graph))


def effectful(
    function: Function, checking: frozenset[str], checks: Predicate = is_effect
) -> set[Op]:
    """Return the ops of a function that must stay: effects (given by `checks`), `while` loops
    (which may not terminate), calls of `checking` functions, and the control ops around all
    these."""
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
