"""Classes of the standard library that call methods of the user's."""

from __future__ import annotations

import abc
import collections
import collections.abc
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import operator
import types
import typing
import weakref
from typing import Any, Generic, Protocol, TypeVar

import torch

from tests.e2e.data_model.uses import signed, use


@use
def mapping_mixin():

    class M(collections.abc.MutableMapping):
        def __init__(self, x):
            self.d = {"a": x}

        def __getitem__(self, k):
            return signed(self.d[k])

        def __setitem__(self, k, v):
            self.d[k] = signed(v)

        def __delitem__(self, k):
            del self.d[k]

        def __iter__(self):
            return iter(self.d)

        def __len__(self):
            return len(self.d)

    def fn(x):
        m = M(x)
        m["b"] = x + 1
        m.update(c=x - 1)
        m.setdefault("d", x * 2)
        y = m.pop("c")
        return m["a"] + m.get("z", x) + y + sum(m.values()) + len(m) + ("a" in m)

    return fn


@use
def sequence_mixin():

    class S(collections.abc.Sequence):
        def __init__(self, *xs):
            self.xs = xs

        def __getitem__(self, k):
            return signed(self.xs[k])

        def __len__(self):
            return len(self.xs)

    def fn(x):
        s = S(x, x + 1, -x)
        t = x * 0
        for i in s:
            t = t * 2 + i
        for i in reversed(s):
            t = t * 2 + i
        return t + s[-1] + len(s)

    return fn


@use
def user_list():

    class L(collections.UserList):
        def append(self, v):
            super().append(signed(v))

    def fn(x):
        held = L([x])
        held.append(x - 1)
        held.extend([x])
        held += [x]
        return held[1] + len(held) + held[-1]

    return fn


@use
def dispatch_on_tensor():

    @functools.singledispatch
    def k(v):
        return torch.ones(3)

    @k.register
    def _(v: torch.Tensor):
        return signed(v)

    @k.register
    def _(v: list):
        return signed(v[0])

    return lambda x: k(x) + k([x]) + k("a")


@use
def dispatch_on_traced_number():

    @functools.singledispatch
    def k(v, x):
        return x

    @k.register
    def _(v: int, x):
        return x * v

    @k.register
    def _(v: float, x):
        return x + v

    return lambda x: k(int(x[0]), x) + k(float(x[0]), x)


@use
def dispatchmethod_on_traced_number():

    class H:
        @functools.singledispatchmethod
        def k(self, v, x):
            return x

        @k.register
        def _(self, v: int, x):
            return x * v

        @k.register
        def _(self, v: float, x):
            return x + v

    h = H()
    return lambda x: h.k(int(x[0]), x) + h.k(float(x[0]), x)


@use
def generic_class():
    T = TypeVar("T")

    class G(Generic[T]):
        def __init__(self, x):
            self.x = signed(x)

        def get(self) -> T:
            return self.x

    return lambda x: G[int](x).get() + G(x).get()


@use
def runtime_protocol():

    @typing.runtime_checkable
    class P(Protocol):
        def area(self): ...

    class A:
        def area(self):
            return 2

    return lambda x: x + isinstance(A(), P) + 2 * isinstance(3, P)


@use
def abstract_property():

    class B(abc.ABC):
        @property
        @abc.abstractmethod
        def v(self): ...

        def w(self):
            return signed(self.v)

    class C(B):
        def __init__(self, x):
            self.x = x

        @property
        def v(self):
            return signed(self.x)

    return lambda x: C(x).w() + isinstance(C(x), B)


@use
def cooperative():

    class A:
        def __init__(self, **k):
            self.log = ["A"]
            super().__init__(**k)

        def f(self, x):
            return signed(x)

    class B(A):
        def __init__(self, b=1, **k):
            super().__init__(**k)
            self.log.append("B")
            self.b = b

        def f(self, x):
            return super().f(x) + self.b

    class C(A):
        def __init__(self, c=2, **k):
            super().__init__(**k)
            self.log.append("C")
            self.c = c

        def f(self, x):
            return super().f(x) * self.c

    class D(B, C):
        def f(self, x):
            return super().f(x) - 1

    return lambda x: D(b=3, c=4).f(x) + len(D().log)


@use
def exit_stack():

    class C:
        def __init__(self, x):
            self.x = x

        def __enter__(self):
            self.x = signed(self.x)
            return self

        def __exit__(self, *e):
            self.x = self.x * 2 if self.x.sum() > 0 else self.x

    def fn(x):
        with contextlib.ExitStack() as s:
            c = s.enter_context(C(x))
            d = s.enter_context(C(-x))
            y = c.x + d.x
        return y + c.x

    return fn


@use
def context_decorator():

    class C(contextlib.ContextDecorator):
        n = 0

        def __enter__(self):
            return self

        def __exit__(self, *e):
            return False

    c = C()

    @c
    def g(x):
        return signed(x)

    return lambda x: g(x) + 1


@use
def suppress():

    def fn(x):
        with contextlib.suppress(ValueError):
            x = x + 1
            raise ValueError
        return x

    return fn


@use
def copies():

    class C:
        def __init__(self, x):
            self.x = x

        def __copy__(self):
            return C(signed(self.x))

        def __deepcopy__(self, memo):
            return C(signed(self.x) + 1)

    return lambda x: copy.copy(C(x)).x + copy.deepcopy(C(x)).x


class It:
    def __init__(self, x, n=3):
        self.x, self.n = (x, n)

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return signed(self.x + self.n)


@use
def zipped():
    return lambda x: sum((a * b for a, b in zip(It(x), It(-x), strict=True)))


@use
def enumerated():

    def fn(x):
        t = x * 0
        for n, i in enumerate(It(x)):
            t = t + n * i
        return t

    return fn


@use
def itools():
    return lambda x: sum(itertools.islice(It(x), 2)) + sum(itertools.chain(It(x), It(x, 1)))


@use
def filtered():
    return lambda x: sum(filter(lambda v: v is not None, It(x)))


@use
def comprehension():
    return lambda x: (
        sum([i * 2 for i in It(x)])
        + sum(i for i in It(x))
        + sum({n + 1: i for n, i in enumerate(It(x))}.values())
    )


@use
def star_args():

    def g(a, b, c):
        return a + 2 * b + 3 * c

    class Kw:
        def __init__(self, x):
            self.x = x

        def keys(self):
            return ["a", "b", "c"]

        def __getitem__(self, k):
            return signed(self.x)

    return lambda x: g(*It(x)) + g(**Kw(x))


@use
def attrgetters():

    class C:
        def __init__(self, x):
            self._x = x

        @property
        def x(self):
            return signed(self._x)

        def m(self, k):
            return signed(self._x * k)

        def __getitem__(self, k):
            return signed(self._x + k)

    return lambda x: (
        operator.attrgetter("x")(C(x))
        + operator.itemgetter(2)(C(x))
        + operator.methodcaller("m", 3)(C(x))
    )


@use
def int_enum():

    class K(enum.IntEnum):
        A = 1
        B = 2

        def f(self, x):
            return signed(x) * self

    class F(enum.Flag):
        P = enum.auto()
        Q = enum.auto()

    return lambda x: (
        K.A.f(x) + K(2) * x + [x, x + 1, x + 2][K.B] + bool(F.P & F.Q) + (F.P in F.P | F.Q)
    )


@use
def enum_missing():

    class K(enum.Enum):
        A = 1

        @classmethod
        def _missing_(cls, v):
            return cls.A

    return lambda x: x + K(7).value


@use
def dataclass_more():

    @dataclasses.dataclass(kw_only=True, slots=True)
    class D:
        x: Any
        k: dataclasses.InitVar[float] = 2.0
        y: Any = None

        def __post_init__(self, k):
            self.y = signed(self.x) * k

        def __add__(self, o):
            return dataclasses.replace(self, x=self.x + o, k=1.0)

    return lambda x: D(x=x).y + (D(x=x, k=3.0) + 1).y


@use
def dataclass_equal():

    @dataclasses.dataclass
    class D:
        n: int
        x: Any = dataclasses.field(compare=False)

    def fn(x):
        if D(1, x) == D(1, -x):
            return x + 1
        return x - 1

    return fn


@use
def module_getattr():
    m = types.ModuleType("m")
    exec("def __getattr__(name):\n    return len(name)", m.__dict__)
    return lambda x: x + m.abc


@use
def partial_of_object():

    class C:
        def __call__(self, x, k):
            return signed(x) * k

    p = functools.partial(C(), k=3)
    return lambda x: p(x)


@use
def weak():

    class C:
        def __init__(self, x):
            self.x = x

        def get(self):
            return signed(self.x)

    def fn(x):
        c = C(x)
        r = weakref.ref(c)
        return r().get()

    return fn


@use
def cached_method():

    class C:
        def __init__(self, k):
            self.k = k

        @functools.lru_cache  # noqa: B019
        def f(self, n):
            return self.k * n

    c = C(3)
    return lambda x: signed(x) * c.f(2) + c.f(2)


@use
def cached_tensor():

    @functools.lru_cache
    def t(n):
        return torch.arange(n).float()

    return lambda x: signed(x) + t(3)
