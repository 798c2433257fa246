"""Functions whose results the interpreter once did not have as Python has them."""

# pyright: basic
# ruff: noqa
# programs of tests

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import operator
from collections import deque
from dataclasses import InitVar, asdict, dataclass, field, fields, replace

import torch


def exceptions_1(x):
    r = []

    def g():
        try:
            yield 1
        except GeneratorExit:
            r.append("closed")
            raise
        finally:
            r.append("fin")

    it = g()
    next(it)
    it.close()
    return r


def exceptions_2(x):
    try:
        raise SystemExit(3)
    except BaseException as e:
        return repr(e)


def exceptions_3(x):

    def f():
        raise

    try:
        try:
            raise ValueError(1)
        except ValueError:
            f()
    except ValueError as e:
        return (repr(e), repr(e.__context__))


def exceptions_4(x):

    def g():
        return (yield 1)

    it = g()
    next(it)

    class M:
        def __enter__(self):
            return self

        def __exit__(self, k, e, t):
            self.e = e
            return True

    with M() as m:
        it.send((2,))
    return (type(m.e).__name__, m.e.value)


def exceptions_5(x):

    class K(BaseException):
        pass

    def h():
        raise K(5)

    if x.sum() > 0:
        try:
            h()
        except K as k:
            return (x, k.args)
        finally:
            x = x + 1
    return (x, 3)


def exceptions_6(x):

    class S:
        def __getitem__(self, i):
            if i < 3:
                return i
            raise IndexError

    return (2 in S(), 7 in S())


def exceptions_7(x):

    def gen():
        try:
            yield 1
        except ValueError as v:
            yield v.args

    i = gen()
    next(i)
    return i.throw(ValueError, 3)


def exceptions_8(x):

    def gen():
        try:
            yield 1
        except StopIteration as v:
            yield v.args

    i = gen()
    next(i)
    return i.throw(StopIteration(3))


def texts_and_numbers_1(x):

    class R:
        def __repr__(self):
            return "R!"

    r = R()
    d = {1: 2}
    d["self"] = d
    l = [d]
    l.append(l)
    return (
        repr(d),
        repr(l),
        repr({r: r}),
        repr({r}),
        repr(set()),
        repr([]),
        repr(d.keys()),
        str({1: r}.items()),
        f"{ {3: 4}.values() }",
    )


def texts_and_numbers_2(x):
    return (int("100", base=2), round(1.25, ndigits=1), int("z", base=36))


def texts_and_numbers_3(x):
    return (
        [0] * 3000 == [0] * 3000,
        [0] * 3000 < [0] * 2999 + [1],
        ([1] * 3000).index(2, -1) if 2 in [1] * 3000 else ([1] * 3000 + [2]).index(2),
    )


def texts_and_numbers_4(x):
    t = (1, 2)
    return (tuple(t) is t, tuple(tuple([1, 2])))


def texts_and_numbers_5(x):

    class T(tuple):
        pass

    return T(sequence=())


def texts_and_numbers_6(x):

    class T(list):
        def __new__(cls, seq, newarg=None):
            u = super().__new__(cls, seq)
            u.newarg = newarg
            return u

    u = T([1, 2], newarg=3)
    return (list(u), u.newarg)


def texts_and_numbers_7(x):
    return bool(1, 2)


def texts_and_numbers_8(x):

    class I(int):
        def __index__(self):
            return 42

    return (int(I(7)), float(I(7)), [1] * 10 if I(7) else 0)


def keys_and_scopes_1(x):

    class L:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return ("eq", self.v, o)[0] == "eq" and self.v < 5

        def __hash__(self):
            return 1

    return {L(1): 1}[L(7)]


def keys_and_scopes_2(x):
    d = {0: 0, 1: 1}
    for k in d:
        d[k] = 5
    for k in d:
        if k == 1:
            d[3] = 4
            break
    return d


def keys_and_scopes_3(x):

    class K:
        __hash__ = None

    return {K(): 1}


def keys_and_scopes_4(x):
    s = {1, frozenset({2, 3})}
    r = ({2, 3} in s, {4} in s, {3, 2} in frozenset(s))
    s.remove({3, 2})
    return (r, s)


def keys_and_scopes_5(x):

    def h():
        y = 1

        def k():
            return y

        del y
        return k

    return h()()


def keys_and_scopes_6(x):
    y = 1

    def k():
        return y

    del y
    return y


z = 5


def keys_and_scopes_7(x):
    z = 3

    def k():
        global z
        return z

    return (z, k())


def keys_and_scopes_8(x):
    n = 1

    class C:
        nonlocal n
        n += 1
        m = n

    return (n, C.m, hasattr(C, "n"))


def keys_and_scopes_9(x):

    class K:
        a = 1
        b = a
        del a

    return (hasattr(K, "a"), K.b)


def keys_and_scopes_10(x):

    class K:
        def __hash__(self):
            return 1

        def __eq__(self, o):
            return isinstance(o, K)

    return (
        {K(): 1}.keys() & {K()} and 1,
        {K(): 1}.keys() == {K()},
        {K(): 1}.keys() <= {K(): 2}.keys(),
    )


def classes_1(x):

    @dataclass(order=True, frozen=True)
    class P:
        a: int
        b: float = field(default=2.0, compare=False)

    p, q = (P(1), P(2, b=1.0))
    return (p < q, p == q, repr(p), hash(p) == hash(P(1)), dataclasses.asdict(q))


def classes_2(x):

    @dataclass
    class P:
        a: list = field(default_factory=list)
        i: InitVar[int] = 3

        def __post_init__(self, i):
            self.a.append(i)

    return (P().a, P([1], 2).a, P().a)


def classes_3(x):

    @dataclass(frozen=True)
    class P:
        a: int

    p = P(1)
    try:
        p.a = 3
    except dataclasses.FrozenInstanceError as e:
        return str(e)


def classes_4(x):

    @dataclass
    class A:
        n: int = 1

    @dataclass(eq=False)
    class B(A):
        m: int = 2

    return (repr(B(5)), B() == B(), [f.name for f in fields(B)])


def classes_5(x):

    class K:
        __match_args__ = ("a", "a")
        a = 1

    match K():
        case K(y, z):
            return 1


def classes_6(x):

    class L:
        def __exit__(self, *a):
            pass

    with L():
        pass


def classes_7(x):

    class L:
        def __enter__(self):
            return 1

    with L():
        pass


def classes_8(x):

    class D:
        def __set__(self, o, v):
            o.__dict__["a"] = v + 1

    class C:
        a = D()

    c = C()
    c.a = 41
    return c.a


def classes_9(x):

    class C:
        def __init__(self, k):
            self.k = k

        def __hash__(self):
            return hash(self.k)

        def __eq__(self, o):
            return self.k == o.k

        def __call__(self, v):
            return v + self.k

    return C(2)(3)


def classes_10(x):

    class P:
        def __init__(self, o):
            self.o = o

        @property
        def __class__(self):
            return type(self.o)

    return (isinstance(P([1]), list), isinstance(P(1), P), type(P(1)).__name__)


def classes_11(x):
    return (pow(2, exp=3), pow(base=2, exp=3, mod=5), "%(n)s" % {"n": 3})


def classes_12(x):
    return "%(n)s" % None


def classes_13(x):
    a = 0
    match [1, 2]:
        case [a, 5]:
            pass
        case [b, 2]:
            pass
    return (a, b)


def classes_14(x):
    a = 0
    y = x.sum().item()
    match [1, y]:
        case [a, 2.0]:
            return (a, y)
        case _:
            pass
    return (a, 7)


def errors_and_patterns_1(x):
    try:
        raise AttributeError("a b")
    except AttributeError as e:
        return (str(e), repr(e))


def errors_and_patterns_2(x):
    try:
        raise KeyError("a b")
    except KeyError as e:
        return (str(e), repr(e), f"{e}")


def errors_and_patterns_3(x):
    try:
        raise ImportError("a b", name="q")
    except ImportError as e:
        return (str(e), repr(e), e.name)


def errors_and_patterns_4(x):
    try:
        raise OSError(2, "a b")
    except OSError as e:
        return (str(e), repr(e), e.errno, type(e).__name__)


def errors_and_patterns_5(x):
    try:
        raise NameError(1, "a b")
    except NameError as e:
        return (str(e), repr(e))


def errors_and_patterns_6(x):
    y = x.sum().item()
    match {"k": y, "j": 3}:
        case {"k": 5.0 as q}:
            return q
        case {"k": 2.0 | -1.0 as q, **rest} if rest:
            return (q, rest)
        case {"k": q}:
            return (q, 9)


def errors_and_patterns_7(x):
    y = x.sum().item()
    match (y, 1):
        case [2.0, a] | [a, 7]:
            return a
        case [b, 1] if b < 0:
            return (b, 2)


def containers_1(x):
    d = dict(self=1, holder=2)
    d.update(self=3, args=4)
    return (d, collections.OrderedDict(self=1), collections.defaultdict(int, self=2))


def containers_2(x):
    r = range(3)
    try:
        r.start = 5
    except AttributeError as e:
        return str(e)


def containers_3(x):
    return (
        operator.countOf({1: 2, 3: 2}.values(), 2),
        type(reversed(range(3))).__name__,
        list(reversed(range(3))),
        sum({1: 2}.values()),
        sorted({3: 1, 2: 1}.keys()),
        max({3: 1}.values()),
    )


def containers_4(x):
    s = {1}
    try:
        s.remove({3})
    except KeyError as k:
        return k.args


def containers_5(x):
    l = [1]
    return (
        l.append == l.append,
        callable(l.append),
        isinstance(l.append, collections.abc.Callable),
    )


def containers_6(x):
    s = slice([1], 2)
    t = copy.deepcopy(s)
    return (t is s, t)


def long_patterns_1(x):
    match range(1 << 30):
        case [p, q, *_]:
            return (p, q)


def long_patterns_2(x):

    class Seq(collections.abc.Sequence):
        def __getitem__(self, i):
            return i

        def __len__(self):
            return 42

    match Seq():
        case [x, *_, y]:
            return (x, y)


def long_patterns_3(x):
    match ([1, 2, 3], (4, 5)):
        case [[a, *r], [*s, b]]:
            return (a, r, s, b)


def long_patterns_4(x):
    match [x, x + 1]:
        case [a, *_]:
            return a


def long_patterns_5(x):
    match []:
        case [*_]:
            return 1


def long_patterns_6(x):
    match (1, 2):
        case [*_, 5]:
            return 1
        case []:
            return 2
        case [_, _]:
            return 3


def errors_1(x):

    class A:
        blech = None

    obj = A()
    try:
        obj.bluch
    except AttributeError as exc:
        return (exc.name, exc.obj is obj, exc.args)


def errors_2(x):
    try:
        raise ValueError(3)
    except 42:
        pass


def errors_3(x):
    try:
        nope
    except NameError as exc:
        return (exc.name, exc.args)


def errors_4(x):
    try:
        try:
            raise KeyError(1)
        except KeyError as k:
            raise ValueError(2) from k
    except ValueError as v:
        return (repr(v.__cause__), repr(v.__context__), v.__suppress_context__)


def errors_5(x):
    try:
        try:
            raise KeyError(1)
        finally:
            raise ValueError(2)
    except ValueError as v:
        return (repr(v.__cause__), repr(v.__context__), v.__suppress_context__)


def errors_6(x):
    import contextlib

    state = []

    @contextlib.contextmanager
    def w():
        state.append(1)
        try:
            yield 42
        except ZeroDivisionError as e:
            state.append(e.args[0])

    with w() as v:
        state.append(v)
        raise ZeroDivisionError(999)
    return state


def errors_7(x):

    def gen():
        try:
            yield 1
        except ValueError:
            yield 2

    g = gen()
    next(g)
    try:
        raise KeyError(3)
    except KeyError:
        try:
            g.throw(ValueError(4))
        except Exception:
            pass
    return 5


def generators_and_deques_1(x):
    t = []

    def g2():
        try:
            yield 1
            yield 2
        finally:
            t.append("g2")

    def g1():
        try:
            yield from g2()
        finally:
            t.append("g1")

    g = g1()
    next(g)
    g.close()
    return t


def generators_and_deques_2(x):
    d = deque([1, 2, 3], maxlen=4)
    return (d * 2, d + d, d * 0)


def generators_and_deques_3(x):
    d = deque([1, 2, 3], maxlen=4)
    d *= 3
    return (d, d.maxlen)


def generators_and_deques_4(x):
    d = deque([1, 2])
    for i in d:
        d.append(3)


def generators_and_deques_5(x):
    k = {1: 2, 3: 4}.keys()
    return (
        k & (1, 5),
        k | [7],
        k - {1: 2}.keys(),
        (1, 9) & k,
        k ^ iter([1]),
        {1: 2}.items() & [(1, 2)],
    )


def generators_and_deques_6(x):

    class I:
        def __index__(self):
            return 1.5

    return operator.index(I())


def generators_and_deques_7(x):
    b = bytearray(b"abc")
    del b[0]
    return bytes(b)


def generators_and_deques_8(x):

    class M(type):
        def __new__(m, n, b, ns, **k):
            c = super().__new__(m, n, b, ns)
            c.k = k
            return c

        def __init__(c, *a, **k):
            pass

    class A(metaclass=M, **{"z": 1}, y=2):
        pass

    return A.k


def generators_and_deques_9(x):
    return (str(), str(b"a", "utf-8"), str(encoding="utf-8"), str(object=3), str(b"x"))


def generators_and_deques_10(x):

    class A:
        """doc"""

        def f(self):
            """fdoc"""

    return (A.__doc__, A.f.__doc__, A().f.__doc__)


def generators_and_deques_11(x):
    l = [1]
    l.append(l)
    return (sorted([l, [0]])[0], len(l), l[1] is l)


def generators_and_deques_12(x):

    def g2():
        try:
            yield 1
        except ValueError:
            yield "v"
        return 5

    def g1():
        r = yield from g2()
        yield r

    g = g1()
    return (next(g), g.throw(ValueError()), next(g))


def generators_and_deques_13(x):
    for i in deque([1, 2]):
        x = x + i
    return x


def calls_and_metaclasses_1(x):

    def f(**k):
        return k

    try:
        return f(a=1, **{"a": 2})
    except TypeError as e:
        return type(e)


def calls_and_metaclasses_2(x):

    def f(**k):
        return k

    try:
        return f(**{1: 2})
    except TypeError as e:
        return str(e)


def calls_and_metaclasses_3(x):

    def f(*a, **k):
        return (a, k)

    return f(1, *(2, 3), b=3, **{"c": 4}, **{"d": 5})


def calls_and_metaclasses_4(x):

    class A:
        pass

    a = A()
    a.__dict__["q"] = 5
    a.__dict__.update(r=6)
    del a.__dict__["q"]
    a.__dict__.setdefault("z", 1)
    a.__dict__.pop("r")
    return (vars(a), "z" in a.__dict__)


def calls_and_metaclasses_5(x):

    class M(type):
        n = []

        def __new__(m, name, b, ns):
            ns["added"] = 5
            return super().__new__(m, name, b, ns)

        def __call__(c, *a):
            return super().__call__(*a)

    class A(metaclass=M):
        def __init__(self, v=1):
            self.v = v

        def f(self):
            return (__class__.__name__, self.v)

    class B(A):
        def f(self):
            return super().f()

    return (A(3).f(), A.added, B(4).f(), type(B).__name__)


def calls_and_metaclasses_6(x):

    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    class B(A):
        def f(self):
            return 1

    class C(enum.Enum):
        P = 1
        Q = 2

    try:
        A()
    except TypeError:
        return (B().f(), C.P.value, C(2).name, [c.name for c in C])


def calls_and_metaclasses_7(x):

    class A(abc.ABC):
        @property
        @abc.abstractmethod
        def p(self): ...

    class B(A):
        pass

    try:
        return B()
    except TypeError as e:
        return str(e)


def calls_and_metaclasses_8(x):

    class A:
        def __init__(self):
            self.a = 1

    class B(A):
        def __init__(self, *a, **k):
            super().__init__(*a, **k)

    try:
        B(1)
    except TypeError as e:
        return str(e)


def formats_1(x):
    r = []
    for f, args in (
        ("{}{1}", (1, 2)),
        ("{1}{}", (1, 2)),
        ("{:{1}}", (1, 2)),
        ("{}{}", (1,)),
        ("{a}", ()),
        ("{!x}", (1,)),
        ("{", ()),
        ("{0.q}", (1,)),
        ("{0[k]}", ({"k": 3},)),
        ("{:{}}", ("x", "^5")),
        ("{0:>{1}}", (3, 5)),
        ("{!r:>5}", ("a",)),
    ):
        try:
            r.append(f.format(*args))
        except Exception as e:
            r.append((type(e).__name__, str(e)))
    return r


def formats_2(x):
    try:
        return "{}".format_map({})
    except ValueError as e:
        return str(e)


def formats_3(x):
    return (
        b"%(a)d" % {b"a": 3},
        b"%d-%s" % (1, b"x"),
        "{a}-{b[0]}".format(a=1, b=[x.shape[0]]),
        "{x}".format_map({"x": 2}),
    )


def formats_4(x):
    return ("{} {}".format(x.sum().item(), [1]), "%s %d" % (x.shape, 3))


class S:
    def __init__(self, v):
        self.v = v

    def __len__(self):
        return self.v

    def __index__(self):
        return self.v


def formats_5(x):
    import bisect

    return (
        bisect.bisect([1, 2, 3], S(2)) if False else hex(S(10)),
        range(S(3)),
        [1, 2, 3][S(1)],
        "a" * S(2),
    )
