"""Passing the bases of stacks: the last step of the lowering.

While functions are lowered, each one notes the stacks that it uses, and a call passes the bases
that it raises. Only then is it known which stacks a function uses, with all that it calls.
The bases of these stacks become its parameters; where a call raises none, it passes its caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stretto.device.expr import Buffer, Const, Expr, Index, Position
from stretto.device.forms import Items
from stretto.device.tree import Call, Leaf, Node, TreeFunction, children, rebuilt, walk
from stretto.ir.types import DType
from stretto.lowering.function import base_register


def pass_bases(
    functions: Sequence[TreeFunction[Items]], used: Mapping[str, set[Buffer]]
) -> tuple[TreeFunction[Items], ...]:
    """The functions with bases as parameters. `used`: what each one uses itself; main has none."""
    stacks = {
        name: tuple(sorted(found, key=lambda buffer: buffer.slot))
        for name, found in _with_callees(functions, used).items()
    }
    named = {function.name: function for function in functions}

    def complete(call: Call[Items], caller: str) -> Call[Items]:
        given = dict(call.registers)
        callee = named[call.function]
        passed = [(reg, given[reg]) for reg in callee.params]
        for buffer in stacks[callee.name]:
            reg = base_register(callee.name, buffer)
            passed.append((reg, given.get(reg, _base(caller, buffer))))
        return replace(call, registers=tuple(passed))

    def extended(function: TreeFunction[Items]) -> TreeFunction[Items]:
        body = _map_calls(function.body, lambda call: complete(call, function.name))
        own = () if function.name == "main" else stacks[function.name]
        bases = (base_register(function.name, buffer) for buffer in own)
        return replace(function, params=(*function.params, *bases), body=body)

    return tuple(extended(function) for function in functions)


def _base(caller: str, buffer: Buffer) -> Expr:
    if caller == "main":
        return Const(0, DType.I64)
    return Position(Index.of(base_register(caller, buffer)))


def _with_callees(
    functions: Sequence[TreeFunction[Items]], used: Mapping[str, set[Buffer]]
) -> dict[str, set[Buffer]]:
    total = {function.name: set(used[function.name]) for function in functions}
    changed = True
    while changed:
        changed = False
        for function in functions:
            found = total[function.name]
            before = len(found)
            for node in walk(function.body):
                if isinstance(node, Call):
                    found |= total[node.function]
            changed |= len(found) > before
    return total


def _map_calls(node: Node[Items], change: Callable[[Call[Items]], Call[Items]]) -> Node[Items]:
    match node:
        case Leaf():
            return node
        case Call():
            return change(node)
        case _:
            return rebuilt(node, [_map_calls(child, change) for child in children(node)])
