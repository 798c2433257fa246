"""Which branches can be predicated: then the launches of both arms are enqueued like those around
them, and those of the arm that is not taken return at once.

Grape (Zheng et al., MICRO 2023, section 3.3) predicates every kernel of an arm, so that a program
with branches is one straight line. Here an arm may have launches only: a library's kernels know no
predicate, and a loop of the host has none to stop at. A register that guards launches must not
change among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stretto.device.expr import Reg
from stretto.device.program import Schedule
from stretto.device.tree import If, Leaf, Let, Node, Seq, assigns, children, leaves, title, walk

Asked = Callable[[Node[Schedule]], bool]


def why_not_predicated(branch: If[Schedule], on_host: Asked, has_call: Asked) -> str | None:
    """Why a branch cannot be predicated; None for one that can. on_host: whether the plan takes a
    node apart; has_call: whether a library call is in one."""
    if has_call(branch):
        return "a library call is in an arm"
    return _why_not(branch, on_host, ())


def _why_not(branch: If[Schedule], on_host: Asked, outer: tuple[Reg, ...]) -> str | None:
    guards = (*outer, branch.condition)
    if changed := sorted({*guards} & {*_assigned(branch)}, key=lambda reg: reg.name):
        return f"an arm changes {changed[0].name}, which decides"
    for arm in children(branch):
        for node in _control(arm, on_host):
            if not isinstance(node, If):
                return f"{title(node)} is taken apart in an arm"
            if (reason := _why_not(node, on_host, guards)) is not None:
                return reason
    return None


def _control(node: Node[Schedule], on_host: Asked) -> Iterator[Node[Schedule]]:
    """The outermost loops, branches and calls in an arm that are taken apart."""
    if isinstance(node, Seq):
        for child in node.children:
            yield from _control(child, on_host)
    elif not isinstance(node, Leaf) and on_host(node):
        yield node


def _assigned(node: Node[Schedule]) -> Iterator[Reg]:
    for inner in walk(node):
        yield from assigns(inner)
    for schedule in leaves(node):
        yield from (item.reg for item in schedule.statements if isinstance(item, Let))
