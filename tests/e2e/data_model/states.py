"""Special methods that change objects, and modules with methods of their own."""

from __future__ import annotations

import torch
from torch import nn

from tests.e2e.data_model.uses import signed, use


@use
def counting_getitem():

    class C:
        def __init__(self):
            self.n = 0

        def __getitem__(self, k):
            self.n += 1
            return k * self.n

    def fn(x):
        c = C()
        a = c[2]
        if x[0] > 0:
            b = c[3]
        else:
            b = c[4] + c[5]
        return x * a + b + c.n

    return fn


@use
def counting_len_in_test():

    class C:
        def __init__(self):
            self.n = 0

        def __len__(self):
            self.n += 1
            return self.n

    def fn(x):
        c = C()
        k = torch.zeros(())
        while len(c) < 4 + (x.sum() > 0):
            k = k + 1
        return x * 0 + k + c.n

    return fn


@use
def counting_bool_in_test():

    class C:
        def __init__(self, x):
            self.n = torch.zeros(())
            self.x = x

        def __bool__(self):
            self.n = self.n + 1
            return bool(self.n < 3 + (self.x.sum() > 0))

    def fn(x):
        c = C(x)
        k = 0 * x
        while c:
            k = k + x
        return k + c.n

    return fn


@use
def property_setter_in_arm():

    class C:
        def __init__(self):
            self._n = torch.zeros(())

        @property
        def n(self):
            return self._n

        @n.setter
        def n(self, v):
            self._n = signed(v.reshape(1))[0]

    def fn(x):
        c = C()
        if x[0] > 0:
            c.n = x[1]
        return x + c.n

    return fn


@use
def add_mutates_in_arm():

    class C:
        def __init__(self):
            self.n = torch.zeros(3)

        def __add__(self, o):
            self.n = self.n + signed(o)
            return self

    def fn(x):
        c = C()
        if x[0] > 0:
            c = c + x
        c = c + 1.0 * x
        return c.n

    return fn


@use
def enter_exit_in_loop():

    class C:
        def __init__(self):
            self.d = torch.zeros(())

        def __enter__(self):
            self.d = self.d + 1

        def __exit__(self, *e):
            self.d = self.d * 2

    def fn(x):
        c = C()
        i = torch.zeros(())
        while i < 2 + (x.sum() > 0):
            with c:
                i = i + 1
        return x + c.d

    return fn


@use
def outer_counter_by_add():

    class C:
        def __init__(self):
            self.n = torch.zeros(3)
            self.k = 0

        def __add__(self, o):
            self.n = self.n + signed(o)
            self.k += 1
            return self.n

    c = C()

    def fn(x):
        return c + x + c.k

    return fn


@use
def outer_setattr():

    class C:
        def __setattr__(self, k, v):
            object.__setattr__(self, k, signed(v))

    c = C()
    c.v = torch.zeros(3)

    def fn(x):
        y = c.v
        c.v = x
        return y + c.v

    return fn


@use
def outer_descriptor():

    class D:
        def __get__(self, o, k):
            return o.__dict__["q"]

        def __set__(self, o, v):
            o.__dict__["q"] = signed(v)

    class C:
        q = D()

    c = C()
    c.q = torch.zeros(3)

    def fn(x):
        y = c.q
        c.q = x + y * 0.1
        return y + c.q

    return fn


@use
def outer_dict_subclass():

    class D(dict):
        def __setitem__(self, k, v):
            super().__setitem__(k, signed(v))

        def __getitem__(self, k):
            return super().__getitem__(k) + 1

    d = D()
    d["a"] = torch.zeros(3)

    def fn(x):
        y = d["a"]
        d["a"] = x + 0.1 * y
        return y + d["a"]

    return fn


@use
def outer_module_buffer_property():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(3))

        @property
        def v(self):
            return self.b

        @v.setter
        def v(self, n):
            self.b = signed(n)

        def __call__(self, x):
            self.v = x + 0.1 * self.v
            return super().__call__(x)

        def forward(self, x):
            return x + self.v

    m = M().eval()
    return lambda x: m(x)


@use
def slots_and_getattr():

    class S:
        __slots__ = ("a",)

        def __getattr__(self, k):
            return signed(torch.ones(3)) * len(k)

    def fn(x):
        s = S()
        y = s.a
        s.a = x
        return y + s.a + s.bcd

    return fn


@use
def module_properties():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3) * 2)

        @property
        def scaled(self):
            return signed(self.w)

        def __getitem__(self, k):
            return self.scaled[k]

        def __iter__(self):
            return iter([self.scaled, self.w])

        def __contains__(self, k):
            return k == "w"

        def __add__(self, o):
            return signed(self.w + o)

        def forward(self, x):
            return x * self.scaled + self[0] + sum(self) + ("w" in self) + (self + x)

    m = M().eval()
    return lambda x: m(x)


@use
def module_setattr():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = 1.0

        def __setattr__(self, n, v):
            if n == "k":
                v = v * 2
            super().__setattr__(n, v)

        def forward(self, x):
            return signed(x) * self.k

    m = M().eval()
    return lambda x: m(x)


@use
def module_call_method():

    class M(nn.Module):
        def forward(self, x):
            return signed(x)

    m = M().eval()
    return lambda x: m.__call__(x) + nn.Module.__call__(m, x) + type(m).forward(m, x)


@use
def module_delegates():

    class Base(nn.Module):
        def __call__(self, *a, **k):
            out = super().__call__(*a, **k)
            return out[0] if isinstance(out, tuple) else out

    class M(Base):
        def forward(self, x, flag=False):
            return (signed(x), x) if flag else signed(x)

    m = M().eval()
    return lambda x: m(x) + m(x, flag=True)


@use
def module_call_in_list():

    class Base(nn.Module):
        def __call__(self, x):
            return super().__call__(x) + 1

        def forward(self, x):
            return signed(x)

    held = nn.ModuleList([Base(), Base()]).eval()

    def fn(x):
        for m in held:
            x = m(x)
        return x + held[int(x[0] > 0)](x)

    return fn


@use
def module_training_override():

    class M(nn.Module):
        def train(self, mode=True):
            return super().train(False)

        def __repr__(self):
            return "M"

        def extra_repr(self):
            return ""

        def __dir__(self):
            return []

        def forward(self, x):
            self.train()
            return signed(x) if not self.training else x

    m = M().eval()
    return lambda x: m(x)


@use
def sequential_subclass():

    class S(nn.Sequential):
        def __call__(self, x):
            return super().__call__(x) * 2

    class T(nn.Sequential):
        def forward(self, x):
            for m in self:
                x = signed(m(x))
            return x

    s = S(nn.ReLU(), nn.Tanh()).eval()
    t = T(nn.ReLU()).eval()
    return lambda x: s(x) + t(x) + s[1](x) + len(s)


@use
def moduledict_subclass():

    class D(nn.ModuleDict):
        def __getitem__(self, k):
            return super().__getitem__("x" + k)

        def forward(self, x):
            return self["a"](x)

    d = D({"xa": nn.Tanh()}).eval()
    return lambda x: d(x) + d["a"](x)


@use
def linear_subclass():

    class L(nn.Linear):
        def forward(self, x):
            return signed(super().forward(x))

        def __call__(self, x, k=2):
            return super().__call__(x) * k

    torch.manual_seed(0)
    held = L(3, 3).eval()
    return lambda x: held(x) + held(x, k=3)
