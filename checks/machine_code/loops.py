"""Which instructions of a compiled program run in loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.machines.cuda.machine_code import Effect, Function, Instruction, called_by


def looped(
    functions: Sequence[Function], wanted: Callable[[Instruction], bool]
) -> list[tuple[Instruction, bool]]:
    """The instructions of a program that are wanted, each with whether it runs in a loop: it can
    follow itself, or its function is called by an instruction that does."""
    inside = {function.name: _in_loops(function) for function in functions}
    repeated: set[str] = set()
    while True:
        called = {
            callee
            for function in functions
            for index, one in enumerate(function.instructions)
            if Effect.CALL in one.effects
            and (function.name in repeated or index in inside[function.name])
            for callee in called_by(one, functions)
        }
        if called <= repeated:
            break
        repeated |= called
    return [
        (one, function.name in repeated or index in inside[function.name])
        for function in functions
        for index, one in enumerate(function.instructions)
        if wanted(one)
    ]


def _in_loops(function: Function) -> set[int]:
    """The instructions that can follow themselves (Tarjan's strongly connected components)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: set[int] = set()
    for root in range(len(function.instructions)):
        pending = [(root, iter(function.successors(root)))] if root not in order else []
        while pending:
            node, rest = pending[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
            following = next((n for n in rest if n not in order or n in stack), None)
            if following is None:
                pending.pop()
                if pending:
                    low[pending[-1][0]] = min(low[pending[-1][0]], low[node])
                if low[node] == order[node]:
                    component = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    if len(component) > 1 or node in function.successors(node):
                        found.update(component)
            elif following in order:
                low[node] = min(low[node], order[following])
            else:
                pending.append((following, iter(function.successors(following))))
    return found
