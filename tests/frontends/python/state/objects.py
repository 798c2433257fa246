"""Objects with state, from Python, its library and NumPy, and what changes each of them."""

# pyright: basic

from __future__ import annotations

import argparse
import array
import bisect
import collections
import configparser
import contextvars
import copy
import csv
import ctypes
import decimal
import email.message
import functools
import graphlib
import hashlib
import heapq
import http.cookies
import io
import itertools
import operator
import queue
import random
import string
import struct
import threading
import types
import weakref
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """`make` gives the object, `change` changes it, `show` says what it holds."""

    name: str
    make: Callable[[], Any]
    change: Callable[[Any], Any]
    show: Callable[[Any], Any]


class Plain:
    def __init__(self) -> None:
        self.n = 0


class Slots:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class BothKinds(Slots):
    def __init__(self) -> None:
        super().__init__()
        self.m = 0


@dataclass(slots=True)
class SlottedRecord:
    n: int = 0
    rows: list[int] = field(default_factory=list)


class Ticking:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        self.n += 1
        return self.n


class Guarded:
    def __init__(self) -> None:
        self.n = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


class WithProperty:
    def __init__(self) -> None:
        self._n = 0

    @property
    def n(self) -> int:
        return self._n

    @n.setter
    def n(self, value: int) -> None:
        self._n = value


class Descriptor:
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return owner.__dict__.get("stored", 0)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["stored"] = value


class Described:
    n = Descriptor()


class Bag(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class NamedList(list):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0


class SlottedList(list):
    __slots__ = ("n",)


class Numbers(np.ndarray):
    pass


def slotted_list() -> SlottedList:
    made = SlottedList()
    made.n = 0
    return made


def function_with_attribute() -> Any:
    def function() -> None: ...

    function.n = 0
    return function


def function_with_default() -> Any:
    def function(seen: list[int] = []) -> list[int]:  # noqa: B006
        seen.append(1)
        return seen

    return function


def function_with_keyword_default() -> Any:
    def function(*, seen: dict[str, int] = {"n": 0}) -> dict[str, int]:  # noqa: B006
        seen["n"] += 1
        return seen

    function.__kwdefaults__ = {"seen": {"n": 0}}
    return function


def counting_closure() -> Any:
    n = 0

    def function() -> int:
        nonlocal n
        n += 1
        return n

    return function


def class_with_attribute() -> Any:
    class Made:
        n = 0

    return Made


def cached_function() -> Any:
    @functools.lru_cache
    def function(n: int) -> int:
        return n

    return function


def generator() -> Any:
    yield from [1, 2, 3, 4, 5, 6, 7, 8, 9]


def config() -> configparser.ConfigParser:
    made = configparser.ConfigParser()
    made.read_string("[a]\nn = 0\n")
    return made


def _raise_n(o: Any) -> None:
    o.n += 1


def _n(o: Any) -> Any:
    return o.n


def _set_item(o: Any) -> None:
    o["n"] = o["n"] + 1


def _item(o: Any) -> Any:
    return o["n"]


def _next(o: Any) -> Any:
    return next(o, -1)


def _rest(o: Any) -> Any:
    return list(itertools.islice(o, 4))


def _attributes(*kinds: Any) -> list[Case]:
    return [Case(getattr(k, "__name__", str(k)), k, _raise_n, _n) for k in kinds]


def _closed_over(o: Any) -> Any:
    return dict(zip(o.__code__.co_freevars, o.__closure__, strict=True))["n"].cell_contents


def _array() -> Any:
    return np.arange(4)


def _listed(o: Any) -> Any:
    return o.tolist()


CASES: list[Case] = [
    *_attributes(Plain, Slots, BothKinds, SlottedRecord, Ticking, Guarded, WithProperty, Described),
    *_attributes(NamedList, slotted_list, function_with_attribute, class_with_attribute),
    Case("namespace", lambda: types.SimpleNamespace(n=0), _raise_n, _n),
    Case("argparse", lambda: argparse.Namespace(n=0), _raise_n, _n),
    Case("bag", lambda: Bag(n=0), _raise_n, _n),
    Case("calling", Ticking, lambda o: o(), _n),
    Case("rows", SlottedRecord, lambda o: o.rows.append(1), lambda o: len(o.rows)),
    Case("default", function_with_default, lambda o: o(), lambda o: len(o.__defaults__[0])),
    Case(
        "kwdefault",
        function_with_keyword_default,
        lambda o: o(),
        lambda o: o.__kwdefaults__["seen"]["n"],
    ),
    Case("closure", counting_closure, lambda o: o(), _closed_over),
    Case("setattr", Plain, lambda o: setattr(o, "n", o.n + 1), _n),
    Case("object.__setattr__", Plain, lambda o: object.__setattr__(o, "n", o.n + 1), _n),
    Case("vars", Plain, lambda o: vars(o).update(n=o.n + 1), _n),
    Case("__dict__", Plain, lambda o: o.__dict__.__setitem__("n", o.n + 1), _n),
    Case("list", lambda: [0], lambda o: o.append(1), len),
    Case("list item", lambda: [0], lambda o: o.__setitem__(0, o[0] + 1), lambda o: o[0]),
    Case("list sort", lambda: [3, 1, 2], lambda o: o.sort(), list),
    Case("list reverse", lambda: [3, 1, 2], lambda o: o.reverse(), list),
    Case("list imul", lambda: [3], lambda o: operator.imul(o, 2), len),
    Case("operator.iadd", lambda: [3], lambda o: operator.iadd(o, [2]), len),
    Case("operator.setitem", lambda: [3], lambda o: operator.setitem(o, 0, o[0] + 1), list),
    Case("heapq", lambda: [5], lambda o: heapq.heappush(o, 1), len),
    Case("heapify", lambda: [5, 4, 3], heapq.heapify, list),
    Case("insort", lambda: [5, 7], lambda o: bisect.insort(o, 6), len),
    Case("shuffle", lambda: [5, 7, 9], lambda o: random.Random(1).shuffle(o), list),
    Case("dict", lambda: {"n": 0}, _set_item, _item),
    Case("dict update", lambda: {"n": 0}, lambda o: o.update(n=o["n"] + 1), _item),
    Case("dict ior", lambda: {"n": 0}, lambda o: operator.ior(o, {"n": o["n"] + 1}), _item),
    Case("dict popitem", lambda: dict.fromkeys(range(9)), lambda o: o.popitem(), len),
    Case("set", lambda: {0}, lambda o: o.add(len(o)), len),
    Case("set update", lambda: {0}, lambda o: o.update({len(o)}), len),
    Case("set isub", lambda: set(range(9)), lambda o: operator.isub(o, {0, 5}), len),
    Case("deque", lambda: collections.deque([1, 2, 3]), lambda o: o.rotate(1), list),
    Case("deque limited", lambda: collections.deque([1, 2, 3], 3), lambda o: o.append(4), list),
    Case(
        "OrderedDict",
        lambda: collections.OrderedDict(a=1, b=2),
        lambda o: o.move_to_end(next(iter(o))),
        list,
    ),
    Case(
        "defaultdict",
        lambda: collections.defaultdict(int),
        lambda o: operator.setitem(o, "n", o["n"] + 1),
        dict,
    ),
    Case(
        "missing",
        lambda: collections.defaultdict(list),
        lambda o: o["n"].append(1),
        lambda o: len(o["n"]) if "n" in o else -1,
    ),
    Case("Counter", lambda: collections.Counter("ab"), lambda o: o.update("a"), lambda o: o["a"]),
    Case(
        "Counter subtract",
        lambda: collections.Counter("ab"),
        lambda o: o.subtract("a"),
        lambda o: o["a"],
    ),
    Case("ChainMap", lambda: collections.ChainMap({"n": 0}), _set_item, _item),
    Case("UserDict", lambda: collections.UserDict(n=0), _set_item, _item),
    Case("UserList", lambda: collections.UserList([0]), lambda o: o.append(1), len),
    Case("array", lambda: array.array("i", [3, 1]), lambda o: o.append(1), list),
    Case(
        "array item", lambda: array.array("i", [3, 1]), lambda o: o.__setitem__(0, o[0] + 1), list
    ),
    Case("array reverse", lambda: array.array("i", [3, 1]), lambda o: o.reverse(), list),
    Case("bytearray", lambda: bytearray(b"ab"), lambda o: o.append(3), bytes),
    Case("bytearray iadd", lambda: bytearray(b"ab"), lambda o: operator.iadd(o, b"c"), bytes),
    Case(
        "memoryview",
        lambda: memoryview(bytearray(b"ab")),
        lambda o: o.__setitem__(0, o[0] + 1),
        bytes,
    ),
    Case("pack_into", lambda: bytearray(4), lambda o: struct.pack_into("B", o, 0, o[0] + 1), bytes),
    Case("StringIO", io.StringIO, lambda o: o.write("a"), lambda o: o.getvalue()),
    Case("StringIO read", lambda: io.StringIO("abcdef"), lambda o: o.read(1), lambda o: o.tell()),
    Case("BytesIO", io.BytesIO, lambda o: o.write(b"a"), lambda o: o.getvalue()),
    Case(
        "csv",
        lambda: (lambda f: (f, csv.writer(f)))(io.StringIO()),
        lambda o: o[1].writerow([1]),
        lambda o: o[0].getvalue(),
    ),
    Case("Queue", queue.Queue, lambda o: o.put(1), lambda o: o.qsize()),
    Case("SimpleQueue", queue.SimpleQueue, lambda o: o.put(1), lambda o: o.qsize()),
    Case("PriorityQueue", queue.PriorityQueue, lambda o: o.put(1), lambda o: o.qsize()),
    Case("iter list", lambda: iter([1, 2, 3, 4, 5, 6, 7, 8, 9]), _next, _rest),
    Case("iter tuple", lambda: iter((1, 2, 3, 4, 5, 6, 7, 8, 9)), _next, _rest),
    Case("iter range", lambda: iter(range(9)), _next, _rest),
    Case("iter dict", lambda: iter(dict.fromkeys(range(9))), _next, _rest),
    Case("iter items", lambda: iter(dict.fromkeys(range(9), 1).items()), _next, _rest),
    Case("iter set", lambda: iter({1, 2, 3}), _next, _rest),
    Case("iter str", lambda: iter("abcdefghi"), _next, _rest),
    Case("iter call", lambda: iter(counting_closure(), 9), _next, _rest),
    Case("reversed", lambda: reversed([1, 2, 3, 4, 5, 6, 7]), _next, _rest),
    Case("enumerate", lambda: enumerate("abcdefghi"), _next, _rest),
    Case("zip", lambda: zip(range(9), range(9), strict=True), _next, _rest),
    Case("map", lambda: map(str, range(9)), _next, _rest),
    Case("filter", lambda: filter(None, range(9)), _next, _rest),
    Case("count", itertools.count, _next, _rest),
    Case("cycle", lambda: itertools.cycle([1, 2, 3]), _next, _rest),
    Case("chain", lambda: itertools.chain([1, 2], [3, 4, 5, 6]), _next, _rest),
    Case("islice", lambda: itertools.islice(range(99), 2, 20, 3), _next, _rest),
    Case("accumulate", lambda: itertools.accumulate(range(9)), _next, _rest),
    Case("pairwise", lambda: itertools.pairwise(range(9)), _next, _rest),
    Case("product", lambda: itertools.product(range(3), range(3)), _next, _rest),
    Case("repeat", lambda: itertools.repeat(1, 5), _next, _rest),
    Case("starmap", lambda: itertools.starmap(max, [(1, 2), (3, 4), (5, 6), (7, 8)]), _next, _rest),
    Case("takewhile", lambda: itertools.takewhile(bool, [1, 2, 3, 0, 4]), _next, _rest),
    Case("tee", lambda: itertools.tee(range(9))[0], _next, _rest),
    Case("generator", generator, _next, _rest),
    Case("generator expression", lambda: (i for i in range(9)), _next, _rest),
    Case("unpacking", lambda: iter(range(9)), lambda o: [a + 1 for a in [next(o), next(o)]], _rest),
    Case("in iterator", lambda: iter(range(9)), lambda o: 2 in o, _rest),
    Case("sum iterator", lambda: iter(range(9)), sum, _rest),
    Case("list iterator", lambda: iter(range(9)), list, _rest),
    Case(
        "config",
        config,
        lambda o: o.set("a", "n", str(o.getint("a", "n") + 1)),
        lambda o: o.getint("a", "n"),
    ),
    Case(
        "contextvar",
        lambda: contextvars.ContextVar("n", default=0),
        lambda o: o.set(5),
        lambda o: o.get(),
    ),
    Case(
        "local",
        threading.local,
        lambda o: setattr(o, "n", getattr(o, "n", 0) + 1),
        lambda o: getattr(o, "n", -1),
    ),
    Case("lru_cache", cached_function, lambda o: o(3), lambda o: o(3)),
    Case(
        "partial",
        lambda: functools.partial(max, 1),
        lambda o: setattr(o, "n", 1),
        lambda o: getattr(o, "n", 0),
    ),
    Case(
        "proxy",
        lambda: (lambda d: (d, types.MappingProxyType(d)))({"n": 0}),
        lambda o: _set_item(o[0]),
        lambda o: o[1]["n"],
    ),
    Case(
        "WeakSet",
        lambda: (lambda k: (k, weakref.WeakSet()))([Plain(), Plain()]),
        lambda o: o[1].add(o[0][0]),
        lambda o: len(o[1]),
    ),
    Case("Context", decimal.Context, lambda o: setattr(o, "prec", 5), lambda o: o.prec),
    Case(
        "sorter",
        graphlib.TopologicalSorter,
        lambda o: o.add(1, 2),
        lambda o: list(copy.deepcopy(o).static_order()),
    ),
    Case(
        "compressor", zlib.compressobj, lambda o: o.compress(b"a" * 99), lambda o: o.copy().flush()
    ),
    Case("hash", hashlib.sha256, lambda o: o.update(b"a"), lambda o: o.hexdigest()),
    Case("Random", lambda: random.Random(3), lambda o: o.random(), lambda o: hash(o.getstate())),
    Case(
        "message", email.message.Message, lambda o: o.add_header("a", "b"), lambda o: len(o.items())
    ),
    Case(
        "element",
        lambda: ElementTree.Element("a"),
        lambda o: o.set("n", "1"),
        lambda o: dict(o.attrib),
    ),
    Case(
        "element append",
        lambda: ElementTree.Element("a"),
        lambda o: o.append(ElementTree.Element("b")),
        len,
    ),
    Case("cookie", http.cookies.SimpleCookie, lambda o: operator.setitem(o, "n", "1"), len),
    Case(
        "template",
        lambda: string.Template("$a"),
        lambda o: setattr(o, "template", "b"),
        lambda o: o.template,
    ),
    Case(
        "c_int",
        lambda: ctypes.c_int(0),
        lambda o: setattr(o, "value", o.value + 1),
        lambda o: o.value,
    ),
    Case("c_array", lambda: (ctypes.c_int * 3)(), lambda o: operator.setitem(o, 0, o[0] + 1), list),
    Case("ndarray item", _array, lambda o: operator.setitem(o, 0, o[0] + 1), _listed),
    Case("ndarray slice", _array, lambda o: operator.setitem(o, slice(1, 3), 7), _listed),
    Case("ndarray fill", _array, lambda o: o.fill(7), _listed),
    Case("ndarray sort", lambda: np.array([3, 1, 2]), lambda o: o.sort(), _listed),
    Case("ndarray iadd", _array, lambda o: operator.iadd(o, 1), _listed),
    Case("ndarray view", _array, lambda o: operator.setitem(o[1:], 0, 7), _listed),
    Case("ndarray flat", _array, lambda o: operator.setitem(o.flat, 0, 7), _listed),
    Case("np.put", _array, lambda o: np.put(o, 0, 7), _listed),
    Case("np.add.at", _array, lambda o: np.add.at(o, 0, 7), _listed),
    Case("np out", _array, lambda o: np.add(o, 1, out=o), _listed),
    Case("np.copyto", _array, lambda o: np.copyto(o, 7), _listed),
    Case(
        "np subclass",
        lambda: np.arange(4).view(Numbers),
        lambda o: operator.setitem(o, 0, 7),
        _listed,
    ),
    Case(
        "np.nditer", lambda: np.nditer(np.arange(9)), lambda o: o.iternext(), lambda o: o.iterindex
    ),
    Case(
        "np generator",
        lambda: np.random.default_rng(1),
        lambda o: o.random(),
        lambda o: str(o.bit_generator.state),
    ),
    Case("masked", lambda: np.ma.array([1, 2, 3]), lambda o: operator.setitem(o, 0, 7), _listed),
]
