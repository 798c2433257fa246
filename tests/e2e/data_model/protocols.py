"""What Python does with the results of special methods."""

from __future__ import annotations

import collections
import math
from typing import Any, NamedTuple

import torch

from tests.e2e.data_model.uses import signed, use


@use
def truth_of_either():

    class P:
        def __bool__(self):
            return True

    class Q:
        def __bool__(self):
            return False

    def fn(x):
        if x[0] > 0:
            p = P()
        else:
            p = Q()
        if p:
            return x + 1
        return (x - 1) * (not p)

    return fn


@use
def notimplemented_chain():

    class A:
        def __add__(self, o):
            return NotImplemented

        def __eq__(self, o):
            return NotImplemented

    class B:
        def __radd__(self, o):
            return 5

        def __eq__(self, o):
            return True

    return lambda x: x + (A() + B()) + (A() == B()) + (A() != B())


@use
def subclass_priority():

    class A:
        def __add__(self, o):
            return 1

        def __lt__(self, o):
            return True

        def __eq__(self, o):
            return True

    class B(A):
        def __radd__(self, o):
            return 2

        def __gt__(self, o):
            return False

        def __eq__(self, o):
            return False

    return lambda x: x + (A() + B()) + (A() < B()) + 2 * (A() == B()) + 4 * (A() != B())


@use
def attribute_error_in_property():

    class C:
        @property
        def v(self):
            raise AttributeError("inner")

        def __getattr__(self, k):
            return 7

    return lambda x: x + C().v


@use
def dunder_on_instance_ignored():

    class C:
        def __len__(self):
            return 2

    c = C()
    c.__len__ = lambda: 9
    return lambda x: x + len(c)


@use
def method_replaced_on_instance():

    class C:
        def f(self, x):
            return x

    c = C()
    c.f = lambda x: signed(x)
    return lambda x: c.f(x)


@use
def getattr_default_dunder():

    class C:
        def __getattr__(self, k):
            return k

    return lambda x: x + len(C().abc) + hasattr(C(), "q") + callable(C())


@use
def delattr_delitem():

    class C:
        def __init__(self):
            self.log = []

        def __delattr__(self, k):
            self.log.append(k)

        def __delitem__(self, k):
            self.log.append(k)

    def fn(x):
        c = C()
        del c.abc
        del c["defg"]
        del c[1:2]
        return x + len(c.log) + len(c.log[0]) + c.log[2].start

    return fn


@use
def walrus_and_starred():

    class C:
        def __init__(self, x):
            self.x = x

        def __iter__(self):
            return iter([signed(self.x), self.x, self.x + 1])

    def fn(x):
        a, *b = C(x)
        (c := C(x))
        p, (q, _, s) = (1, c)
        return a + b[0] + len(b) + q + s + p

    return fn


@use
def comparisons_chain_objects():

    class C:
        def __init__(self, v):
            self.v = v

        def __lt__(self, o):
            return self.v < o.v

        def __le__(self, o):
            return self.v <= o.v

    def fn(x):
        if C(0) < C(x[0]) <= C(x[1]):
            return x + 1
        return x - 1

    return fn


@use
def namedtuple_new():

    class P(NamedTuple):
        a: Any
        b: Any = 2

        def __mul__(self, k):
            return P(signed(self.a) * k, self.b)

        def __eq__(self, o):
            return self.b == o.b

        def __getitem__(self, k):
            return (self.a, self.b)[k] if not isinstance(k, str) else getattr(self, k)

    return lambda x: (P(x) * 3).a + (P(x) == P(-x)) + P(x)["b"] + P(x)[1]


@use
def index_obj():

    class Items:
        def __init__(self, i):
            self.i = i

        def __index__(self):
            return self.i

    return lambda x: (
        x[Items(1)]
        + x[Items(0) : Items(2)].sum()
        + [1, 2, 3][Items(2)]
        + torch.zeros(3).narrow(0, Items(0), Items(1)).sum()
        + sum(range(Items(3)))
        + "abc".index("c", Items(0))
    )


@use
def float_obj():

    class F:
        def __float__(self):
            return 2.5

        def __int__(self):
            return 2

        def __round__(self, n=None):
            return 3

        def __trunc__(self):
            return 4

        def __floor__(self):
            return 5

        def __ceil__(self):
            return 6

        def __abs__(self):
            return 7

        def __complex__(self):
            return 1j

    return lambda x: (
        x
        + float(F())
        + int(F())
        + round(F())
        + math.trunc(F())
        + math.floor(F())
        + math.ceil(F())
        + abs(F())
        + math.sqrt(F())
        + complex(F()).imag
    )


@use
def format_obj():

    class F:
        def __format__(self, s):
            return s + "q"

        def __str__(self):
            return "str"

        def __repr__(self):
            return "repr"

    return lambda x: (
        x
        + len(f"{F():abc}")
        + len(f"{F():x}{F()}")
        + len(f"{F()!s}{F()!r}")
        + len("%s%r" % (F(), F()))  # noqa: UP031
        + len(str([F()]))
        + len(format(F(), "zz"))
        + len(ascii(F()))
    )


@use
def with_tuple_targets():

    class C:
        def __enter__(self):
            return (1, 2)

        def __exit__(self, *e):
            pass

    def fn(x):
        with C() as (a, b), C() as c:
            return x + a + b + c[0]

    return fn


@use
def exit_sees_exception():

    class C:
        def __init__(self):
            self.seen = None

        def __enter__(self):
            return self

        def __exit__(self, t, v, tb):
            self.seen = (t.__name__, str(v))
            return True

    def fn(x):
        c = C()
        with c:
            if len(x) == 3:
                raise KeyError("k")
            x = x + 100
        return x + len(c.seen[0]) + len(c.seen[1])

    return fn


@use
def exit_by_tensor():

    class C:
        def __init__(self, x):
            self.x = x

        def __enter__(self):
            return self

        def __exit__(self, t, v, tb):
            return bool(self.x.sum() > 0)

    def fn(x):
        with C(x):
            y = x + 1
        return y

    return fn


@use
def tensor_subclass_like():

    class P:
        def __init__(self, x):
            self.x = x

        def __getattr__(self, k):
            return getattr(self.x, k)

        def __getitem__(self, k):
            return self.x[k]

        def __len__(self):
            return len(self.x)

    return lambda x: P(x).sum() + P(x)[0] + len(P(x)) + P(x).shape[0] + P(x).clamp(min=0)


@use
def ordered_iteration():

    class Ordered(collections.OrderedDict):
        def __iter__(self):
            return iter(["b", "a"])

        def items(self):
            return [(k, self[k]) for k in self]

    def fn(x):
        o = Ordered(a=x, b=x * 2)
        t = x * 0
        for k in o:
            t = t * 2 + o[k]
        for _, v in o.items():
            t = t * 3 + v
        return t + len(o)

    return fn
