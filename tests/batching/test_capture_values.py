"""Texts, members of enumerations, named tuples and objects of instances, as `batching.capture`
reads them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

from stretto.errors import CaptureError
from tests.batching.test_capture import check


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3

    @property
    def is_warm(self) -> bool:
        return self is Color.RED

    def shifted(self, by: int) -> int:
        return self.value * 10 + by


class Shape(enum.Enum):
    BALL = "ball"
    CUBE = "cube"


class Pair(NamedTuple):
    left: Any
    right: Any = None

    def total(self) -> Any:
        return self.left + self.right


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


@dataclass
class Item:
    kind: Color | None
    weight: int = 0


@dataclass(order=True)
class Version:
    major: int
    name: str


@functools.total_ordering
class Weighed:
    def __init__(self, weight: int) -> None:
        self.weight = weight

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighed) and self.weight == other.weight

    def __lt__(self, other: Weighed) -> bool:
        return self.weight < other.weight

    def __hash__(self) -> int:
        return 1


@dataclass
class Box:
    value: Any
    next: Any = None


# ---- texts --------------------------------------------------------------------------------------


def methods(s: str) -> Any:
    return (
        s.startswith("a"), s.startswith(("x", "ab")), s.endswith("a"), s.find("b"), s.rfind("b"),
        s.count("b"), s.count(""), s.replace("b", "xy"), s.replace("", "-"), s.split("b"),
        s.split(), s.strip(), s.lstrip(), s.rstrip("a"), s.removeprefix("a"), s.removesuffix("a"),
        s.ljust(4) + "|", s.rjust(5, "*"), "-".join(s), "b" in s, s[1:-1], s[::-1], s * 2, 2 * s,
    )  # fmt: skip


def known_with_unknown(s: str) -> Any:
    text = "abcab"
    return (
        text.startswith(s), text.find(s), text.replace("c", s), text.count(s), s in text,
        s.join(["x", "y", "z"]), text.split(s) if s else None, text == s, text < s,
    )  # fmt: skip


def shown(p: Any) -> Any:
    a, b, c = p
    text = f"{a}:{b!r}:{c}"
    return text, str(a), repr(b), len(text), "{}-{}".format(a, b), "%s/%s" % (a, b)  # noqa: UP031, UP032


def joined_in_branches(p: Any) -> Any:
    name, flag = p
    text = "none" if flag else name
    other = "yes" if flag else "no"
    both = f"{text}/{other}"
    if both == "none/yes":
        both += "!"
    return text, other, both, len(other), other in ("yes", "maybe")


def built_in_a_loop(items: Any) -> Any:
    text, last, longest = "", None, ""
    for item in items:
        text += item + ","
        last = item
        if len(item) > len(longest):
            longest = item
    return text, last, longest


def tags_in_a_loop(items: Any) -> Any:
    state, count = "start", 0
    for item in items:
        if state == "start" and item == "go":
            state = "running"
        elif state == "running":
            count += 1
            if item == "stop":
                state = "done"
    return state, count


def in_objects(items: Any) -> Any:
    made = [Box(item + "!") for item in items]
    for box in made:
        if box.value == "b!":
            box.value = "changed"
    return [box.value for box in made], Box("x" if items else "y")


def depth_first(node: Node) -> str:
    if not node.children:
        return node.name
    return node.name + "(" + " ".join([depth_first(child) for child in node.children]) + ")"


def path_to(node: Node, wanted: str, path: str = "") -> str | None:
    here = path + "/" + node.name
    if node.name == wanted:
        return here
    for child in node.children:
        found = path_to(child, wanted, here)
        if found is not None:
            return found
    return None


def search(node: Node) -> Any:
    return path_to(node, "c"), path_to(node, "missing")


def is_palindrome(s: str) -> bool:
    return len(s) < 2 or (s[0] == s[-1] and is_palindrome(s[1:-1]))


def counted(items: Any) -> Any:
    seen: dict[str, int] = {}
    for item in items:
        key = item[:1] + "*"
        seen[key] = seen.get(key, 0) + 1
    return seen, sorted(seen), max(items, default="none"), "a*" in seen


def dispatched(p: Any) -> Any:
    table = {"neg": lambda x: -x, "twice": lambda x: x * 2}
    name, x = p
    found = table.get(name)
    return (table[name](x) if name in table else None), found is None, len(table)


def matched(s: Any) -> Any:
    match s:
        case "a" | "b":
            return 1
        case "c":
            return "see"
        case str() if len(s) > 2:
            return s[2]
        case None:
            return -1
        case _:
            return 0


def codes(s: str) -> Any:
    total = 0
    for number, one in enumerate(s):
        total += ord(one) * (number + 1)
    first, *rest = s
    return total, first, rest, [one for one in s if one != "a"], list(s), set(s) == set("ab")


def text_or_none(s: Any) -> Any:
    shown = "<" + str(s) + ">"
    return shown, s or "empty", s is None, s == "a", f"{s!r}"


def unique(items: Any) -> Any:
    found: list[str] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found, found.index(items[0]) if items else None, found.count("a")


A_TREE = Node("a", [Node("b", [Node("c")]), Node("d")])
PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "methods": (methods, ["abab", "", " a b ", "xba", "bbb"]),
    "known_with_unknown": (known_with_unknown, ["ab", "", "c", "q"]),
    "shown": (shown, [(1, "a", True), (-20, "it's", False)]),
    "joined_in_branches": (joined_in_branches, [("a", True), ("b", False)]),
    "built_in_a_loop": (built_in_a_loop, [[], ["a"], ["ab", "c", "def", "xyz"]]),
    "tags_in_a_loop": (tags_in_a_loop, [[], ["go", "x", "stop", "go"], ["x", "go"]]),
    "in_objects": (in_objects, [[], ["a", "b", "c"]]),
    "depth_first": (depth_first, [A_TREE, Node("x")]),
    "search": (search, [A_TREE, Node("x")]),
    "is_palindrome": (is_palindrome, ["abcba", "ab", "", "abca"]),
    "counted": (counted, [[], ["ab", "b", "ac", "b"]]),
    "dispatched": (dispatched, [("neg", 2), ("twice", 3), ("other", 4)]),
    "matched": (matched, ["a", "b", "c", "long", "x", None]),
    "codes": (codes, ["ab", "b", "abc"]),
    "text_or_none": (text_or_none, ["a", "", None]),
    "errors_of_texts": (lambda s: s[1] if s else 1 in s, ["x", "", "abc"]),
    "unique": (unique, [[], ["a", "b", "a", "c", "b"]]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts(name: str) -> None:
    function, instances = PROGRAMS[name]
    check(function, instances)


# ---- members, named tuples, objects -------------------------------------------------------------

WEIGHTS = {Color.RED: 0.5, Color.GREEN: 1.5, Color.BLUE: 2.5}


def members(item: Item) -> Any:
    if item.kind is None:
        return "no kind"
    if item.kind in (Color.RED, Color.BLUE):
        return WEIGHTS[item.kind] * item.weight
    return item.kind.name, item.kind.value, item.kind.is_warm, item.kind.shifted(item.weight)


def members_of_two(p: Any) -> Any:
    kind, shape = p
    same = kind is shape
    if kind is Shape.BALL:
        return same, 1
    match kind:
        case Color.RED | Color.GREEN:
            return same, kind.name
        case Color():
            return same, kind
        case _:
            return same, type(kind) is Shape


def members_in_a_loop(items: Any) -> Any:
    counts, last = dict.fromkeys(Color, 0), None
    for item in items:
        if item is Color.BLUE:
            continue
        last = item
    for color in Color:
        counts[color] = sum([1 for item in items if item is color])
    return [counts[color] for color in Color], last, Color.RED in items, items.count(Color.GREEN)


def named(p: Pair) -> Any:
    left, right = p
    made = p._replace(left=right)
    items = [p, Pair(left, 1), made]
    chosen = p if left > 1 else Pair(right, left)
    return items[2].left, items, chosen, p.total(), p == (left, right), chosen[0], (*p, 1)


def named_trees(p: Any) -> Any:
    if p is None:
        return 0
    return p.left + named_trees(p.right)


def compared(p: Any) -> Any:
    a, b = Version(p[0], p[1]), Version(p[2], p[3])
    x, y = Weighed(p[0]), Weighed(p[2])
    return (
        a < b, a <= b, a == b, a != b, max(a, b).name, sorted([b, a])[0].major, x >= y, x == y,
        x > y, min([x, y]).weight, a is a, x is y, x in [y], x in [x],
    )  # fmt: skip


def identity(items: Any) -> Any:
    first = items[0]
    chosen = first if len(items) > 1 else items[-1]
    chosen.value = chosen.value + 1
    copy = Box(first.value)
    found = [item is first for item in items]
    copied = copy if first.value > 5 else first
    copied.value += 10
    return found, chosen is first, copy is first, copied is first, items, copy == first


def last_box(items: Any) -> Any:
    held = None
    for item in items:
        made = Box(item, held)
        if item > 2:
            held = made
    length, at = 0, held
    while at is not None:
        length += 1
        at = at.next
    return held, length


def methods_after_branches(p: Any) -> Any:
    node = p[0] if p[2] else p[1]
    method = node.children.append
    method(Node("new"))
    return len(p[0].children), len(p[1].children), node is p[0], node.children[-1].name


def functions_in_loops(items: Any) -> Any:
    def scaled(x: Any) -> Any:
        return x

    for item in items:

        def scaled(x: Any, by: Any = 2) -> Any:  # noqa: F811
            return x * by + item  # noqa: B023

    return scaled(3)


ONE, TWO = Box(1), Box(2)
OBJECTS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "members": (members, [Item(Color.RED, 2), Item(Color.GREEN, 3), Item(Color.BLUE), Item(None)]),
    "members_of_two": (
        members_of_two,
        [(Color.RED, Shape.BALL), (Color.BLUE, Shape.CUBE), (Shape.BALL, Shape.BALL),
         (Shape.CUBE, Shape.BALL)],
    ),
    "members_in_a_loop": (
        members_in_a_loop, [[], [Color.RED, Color.BLUE, Color.RED], [Color.GREEN]]
    ),
    "named": (named, [Pair(1, 2), Pair(3, 4)]),
    "named_trees": (named_trees, [None, Pair(1, None), Pair(1, Pair(2, Pair(3, None)))]),
    "compared": (compared, [(1, "a", 1, "b"), (2, "a", 1, "b"), (1, "a", 1, "a")]),
    "identity": (identity, [[Box(1)], [Box(1), Box(6)], [ONE, TWO, ONE]]),
    "last_box": (last_box, [[], [1, 3, 2, 4]]),
    "methods_after_branches": (
        methods_after_branches,
        [(Node("a"), Node("b"), True), (Node("a"), Node("b", [Node("c")]), False)],
    ),
    "functions_in_loops": (functions_in_loops, [[], [1], [1, 2, 5]]),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name: str) -> None:
    function, instances = OBJECTS[name]
    check(function, instances)


@pytest.mark.parametrize(
    ("function", "instance"),
    [
        (lambda s: s.upper(), "a"),
        (lambda p: f"{p[0]:>5}{p[1]}", (1, "a")),
        (lambda p: p[0] + str(p[1]), ("a", 1.5)),
        (lambda s: int(s), "1"),
        (lambda s: getattr(torch, s), "zeros"),
        (lambda s: s.find("a", 1), "aa"),
    ],
)
def test_what_has_no_op_is_refused(function: Callable[..., Any], instance: Any) -> None:
    with pytest.raises(CaptureError):
        check(function, [instance])
