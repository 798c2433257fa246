"""How Python finds special methods."""

from __future__ import annotations

from tests.e2e.data_model.uses import signed, use


@use
def call_as_attribute():

    class C:
        def __init__(self):
            self.__call__ = lambda x: x * 100

        def __call__(self, x):
            return signed(x)

    c = C()
    return lambda x: c(x)


@use
def static_call():

    class C:
        @staticmethod
        def __call__(x):
            return signed(x)

    class D:
        @classmethod
        def __call__(cls, x):
            return signed(x)

    c, d = (C(), D())
    return lambda x: c(x) + d(x)


@use
def call_descriptor():

    class De:
        def __get__(self, o, k):
            return lambda x: signed(x) * o.k

    class C:
        __call__ = De()

        def __init__(self, k):
            self.k = k

    c = C(3)
    return lambda x: c(x)


@use
def getattr_counts():

    class C:
        def __init__(self, x):
            self.n = 0
            self.x = x

        def __getattr__(self, k):
            self.n += 1
            return signed(self.x) * self.n

    def fn(x):
        c = C(x)
        return c.a + c.b * c.n

    return fn


@use
def lazy_attr():

    class C:
        def __init__(self, x):
            self.x = x

        def __getattr__(self, k):
            if k == "y":
                self.y = signed(self.x)
                return self.y
            raise AttributeError(k)

    def fn(x):
        c = C(x)
        return c.y + c.y + hasattr(c, "zz")

    return fn


@use
def eq_hash_set():

    class K:
        def __init__(self, n):
            self.n = n

        def __eq__(self, o):
            return self.n == o.n

        def __hash__(self):
            return self.n % 2

    return lambda x: (
        x * len({K(1), K(3), K(1), K(2)})
        + [K(1), K(2)].index(K(2))
        + [K(1), K(1)].count(K(1))
        + (K(3) in {K(3): 1})
    )


@use
def eq_by_traced_number():

    class K:
        def __init__(self, n):
            self.n = n

        def __eq__(self, o):
            return self.n == o.n

    def fn(x):
        held = [K(1), K(2)]
        if K(int(x[0])) in held:
            x = x + 1
        return x + (K(int(x[0])) != K(2))

    return fn


@use
def bool_false_default():

    class B:
        def __init__(self, x):
            self.x = x

        def __bool__(self):
            return bool(self.x[0] > 0)

    def fn(x):
        a = B(x) or B(-x)
        b = B(x) and B(-x)
        return a.x + 2 * b.x

    return fn


@use
def contains_by_iter():

    class Items:
        def __init__(self, x):
            self.x = x

        def __iter__(self):
            return iter([self.x.sum() > 0, 5])

    return lambda x: x + (5 in Items(x)) + (7 in Items(x))


@use
def contains_by_getitem():

    class Items:
        def __getitem__(self, i):
            if i > 3:
                raise IndexError
            return i * i

    return lambda x: x + (9 in Items()) + 2 * (5 in Items())


@use
def tensor_left_operand():

    class W:
        def __init__(self, k):
            self.k = k

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

        def __radd__(self, x):
            return signed(x) * self.k

        def __rmul__(self, x):
            return signed(x) - self.k

        def __gt__(self, x):
            return signed(x) < self.k

    w = W(3)
    return lambda x: x + w + x * w + (x < w)


@use
def iop_list_attr():

    class L:
        def __init__(self):
            self.v = []

        def __iadd__(self, x):
            self.v.append(signed(x))
            return self

    class H:
        def __init__(self):
            self.l = L()

    def fn(x):
        h = H()
        h.l += x
        h.l += x - 1
        return sum(h.l.v) + len(h.l.v)

    return fn


@use
def ior_dict():

    class D(dict):
        def __ior__(self, o):
            for k, v in o.items():
                self[k] = signed(v)
            return self

    def fn(x):
        d = D()
        d |= {"a": x}
        return d["a"]

    return fn


@use
def set_name_registry():

    class F:
        def __init__(self):
            self.name = None

        def __set_name__(self, o, n):
            self.name = n
            o.names = [*getattr(o, "names", []), n]

        def __get__(self, o, k):
            return signed(o.x) * len(self.name)

    def fn(x):

        class C:
            aa = F()
            bbb = F()

            def __init__(self, x):
                self.x = x

        return C(x).aa + C(x).bbb + len(C.names)

    return fn


@use
def meta_new():

    class M(type):
        def __new__(m, n, b, d, **k):
            d["added"] = property(lambda self: signed(self.x))
            return super().__new__(m, n, b, d)

        def __init__(cls, n, b, d, **k):
            cls.k = k.get("k", 1)

    class C(metaclass=M, k=4):
        def __init__(self, x):
            self.x = x

    return lambda x: C(x).added * C.k


@use
def subclasscheck():

    class M(type):
        def __subclasscheck__(cls, s):
            return s is int

    class C(metaclass=M):
        pass

    return lambda x: x + issubclass(int, C) + 2 * issubclass(str, C)


@use
def class_property():

    class M(type):
        @property
        def scale(cls):
            return cls._s * 2

        def __setattr__(cls, n, v):
            super().__setattr__(n, v)

    class C(metaclass=M):
        _s = 3

    return lambda x: signed(x) * C.scale


@use
def property_override():

    class A:
        def __init__(self, x):
            self._x = x

        @property
        def x(self):
            return signed(self._x)

    class B(A):
        @A.x.setter
        def x(self, v):
            self._x = signed(v)

    def fn(x):
        b = B(x)
        b.x = x - 1
        return b.x + b._x

    return fn


@use
def slots_property():

    class S:
        __slots__ = ("_v",)

        def __init__(self, x):
            self._v = x

        @property
        def v(self):
            return signed(self._v)

        @v.setter
        def v(self, n):
            self._v = n

    def fn(x):
        s = S(x)
        s.v = x + 1
        s.v += 1
        return s.v

    return fn


@use
def unary_on_either():

    class P:
        def __init__(self, x):
            self.x = x

        def __neg__(self):
            return signed(self.x)

        def __add__(self, o):
            return signed(self.x) + o

        def __len__(self):
            return 2

        def __getitem__(self, k):
            return signed(self.x) * k

        def __contains__(self, k):
            return k == 1

    class Q:
        def __init__(self, x):
            self.x = x

        def __neg__(self):
            return self.x - 1

        def __add__(self, o):
            return self.x * o

        def __len__(self):
            return 5

        def __getitem__(self, k):
            return self.x + k

        def __contains__(self, k):
            return k == 2

    def fn(x):
        if x[0] > 0:
            p = P(x)
        else:
            p = Q(x)
        return -p + (p + 2) + len(p) + p[3] + (1 in p)

    return fn


@use
def functions_of_c():
    """They are no descriptors, and get no object as their first argument."""

    class C:
        act = abs
        __call__ = len

    c = C()
    return lambda x: c.act(signed(x)) * c([1, 2])


@use
def methods_of_c_under_other_names():
    class Bag(dict):
        __getattr__ = dict.get
        __setattr__ = dict.__setitem__
        __delattr__ = dict.__delitem__
        first = dict.pop

    def fn(x):
        b = Bag(n=0, m=1)
        for v in x:
            if v > 0:
                b.n += 1
        b.x = signed(x)
        del b.m
        return b.x * b.n + len(b) + (b.m is None) + len(vars(b)) + b.first("n")

    return fn


@use
def order_of_keywords():
    class C:
        def __init__(self, **given):
            self.__dict__.update(given)

        def __call__(self, **given):
            return list(given)

    def fn(x):
        c = C(z=signed(x), b=1, y=2)
        return x * 10 ** list(vars(c)).index("y") + c(v=1, c=2, d=3).index("c")

    return fn
