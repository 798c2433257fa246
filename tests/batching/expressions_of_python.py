"""Expressions that use what the front end models of Python, a line each: what is before `;` are
statements. `!` begins those that a batch refuses."""

from __future__ import annotations

FUNCTIONS = r"""
list(combinations(xs, 0))
list(combinations(xs, 1))
list(combinations(xs, 2))
list(combinations(xs, 3))
list(combinations(xs, 4))
list(combinations(xs, -1))
! list(combinations(xs, i))
list(combinations(xs, r=2))
list(combinations(iterable=xs, r=2))
! list(permutations(xs, 2))
! list(combinations_with_replacement(xs, 2))
list(product(xs))
list(product(xs, repeat=2))
list(product(xs, xs, repeat=1))
list(product())
list(product(xs, fs, ts))
list(repeat(i, 3))
list(repeat(i, -1))
list(repeat(i, times=2))
list(repeat(i, j))
list(repeat(object=i, times=2))
! repeat(i)
list(islice(xs, 2))
list(islice(xs, None))
list(islice(xs, 1, None))
list(islice(xs, 1, 3))
list(islice(xs, 0, 3, 2))
list(islice(xs, 0, None, 2))
list(islice(xs, -1))
list(islice(xs, -1, None))
list(islice(xs, 1, -1))
list(islice(xs, 0, 3, -1))
list(islice(xs, 0, 3, 0))
list(islice(xs, i))
list(islice(xs, 0, i))
list(islice(xs, 0, 4, i))
list(islice(xs, None, 3))
list(islice(xs, None, None, None))
! list(islice(xs))
! list(islice(xs, 1, 2, 3, 4))
list(islice(xs, y))
list(islice(xs, ...))
list(accumulate(xs))
list(accumulate(xs, None))
list(accumulate(xs, lambda a, c: a * c))
list(accumulate(xs, func=lambda a, c: a * c))
list(accumulate(xs, initial=5))
list(accumulate(xs, initial=None))
list(accumulate(xs, lambda a, c: a * c, initial=5))
list(accumulate(xs, operator.mul))
list(accumulate(iterable=xs))
list(pairwise(xs))
! list(pairwise(xs, 1))
list(chain(xs, ts))
list(chain())
list(chain(xs, 1))
list(chain.from_iterable([xs, xs]))
! list(chain.from_iterable([xs], [xs]))
! list(zip_longest(xs, fs))
! list(starmap(operator.add, [ts, ts]))
! list(takewhile(lambda v: v > 1, xs))
! list(dropwhile(lambda v: v > 1, xs))
! list(compress(xs, xs))
! list(filterfalse(None, xs))
! list(tee(xs)[0])
[q for q, k in zip(count(i), xs)]
[q for q, k in zip(count(i, 2), xs)]
[q for q, k in zip(count(start=i, step=-1), xs)]
! [q for q, k in zip(count(y), xs)]
[q for q, k in zip(count(i, 0), xs)]
! [q for q, k in zip(count(i, 0.5), xs)]
! [q for q, k in zip(count(1, 2, 3), xs)]
! [q for q, k in zip(count(s), xs)]
reduce(operator.add, xs)
reduce(operator.add, xs, 1)
reduce(operator.add, xs, None)
reduce(operator.add, xs, 1, 2)
! reduce(operator.add, xs, initial=1)
reduce(operator.add, (), i)
reduce(lambda a, c: a - c, xs, i)
! reduce(operator.add)
reduce(operator.add, i)
partial(up, i)()
partial(max, i)(j)
partial(lambda a, c=1: a - c, c=i)(j)
partial(lambda a, c=1: a - c, c=i)(j, c=2)
! partial()
! partial(i)
abs(i)
! abs(i, 1)
abs(s)
abs(b)
! abs()
! abs(x=i)
round(y)
round(y, 1)
round(y, ndigits=1)
round(y, None)
! round(y, -1)
! round(y, i)
round(i, 1)
! round(i, -1)
round(b, 1)
round(b)
round(number=y)
round(number=y, ndigits=1)
! round(y, 1.5)
! round(i, 1.5)
! round(y, 1, 2)
! round(s)
! round(y, True)
round(i, None)
! round(y, "a")
divmod(i, 3)
divmod(i, j)
divmod(y, 2)
! divmod(i)
! divmod(i, 2, 3)
divmod(s, 2)
! pow(i, 2)
! pow(i, j)
! pow(i, 2, 5)
! pow(base=i, exp=2)
! pow(base=i, exp=2, mod=5)
! pow(2, i)
! pow(y, 2)
int(y)
! int(s)
int(i)
! int(i, 10)
! int("10", i)
! int(x=i)
int(b)
int(m)
int(xs)
int()
! int("12", base=i)
float(i)
! float(s)
float(b)
! float(i, 1)
! float(x=i)
float(xs)
bool(i)
bool(xs)
bool(s)
bool(m)
! bool(i, 1)
! bool(x=i)
bool(d)
! complex(i)
str(i)
! str(y)
str(b)
str(m)
! str(xs)
! str(i, "utf8")
str(object=i)
! str(s, errors="strict")
str()
! str(ts)
! repr(i)
! repr(s)
! repr(xs)
! ascii(s)
! chr(i)
! chr(97 + i)
ord(s)
! ord(i)
! ord(s, 1)
ord(ws[0])
! hex(i)
! bin(i)
! oct(i)
! format(i)
! format(i, "d")
! hash(i)
! hash(s)
! hash(xs)
! id(xs) == id(xs)
! callable(i)
callable(up)
! callable(lambda: i)
! vars(d)
! dir(i)
len(xs)
len(s)
len(ts)
len(i)
! len(xs, 1)
! len(obj=xs)
len(d)
len(m)
len(range(i))
len(zip(xs))
! len(up)
! len(lambda: 1)
list(range(i))
list(range(i, 5))
list(range(5, i, -1))
! list(range(0, 10, i))
! list(range(0, i, 0))
! list(range(y))
! list(range(i, step=2))
list(range(True, i))
! list(range())
! list(range(1, 2, 3, i))
list(range(-3, i, 2))
! range(i)[1]
! i in range(5)
! range(i) == range(i)
len(range(0, i, 2))
! list(range(s))
list(enumerate(xs))
list(enumerate(xs, 1))
list(enumerate(xs, start=i))
list(enumerate(xs, i))
! list(enumerate(xs, y))
list(enumerate(xs, 1.5))
! list(enumerate(xs, s))
! list(enumerate(xs, 1, 2))
list(enumerate(iterable=xs))
! list(enumerate(xs, begin=1))
list(enumerate(ts, i))
list(enumerate(i))
list(enumerate(xs, True))
list(enumerate(ts, True))
! list(enumerate())
list(zip(xs, fs))
list(zip())
list(zip(xs))
! list(zip(xs, ts, strict=True))
list(zip(xs, fs, strict=True))
list(zip(xs, fs, strict=False))
! list(zip(xs, fs, strict=b))
list(zip(xs, fs, strict=0))
list(zip(xs, fs, strict=1))
list(zip(xs, fs, strict=None))
! list(zip(xs, fs, strikt=True))
list(zip(xs, i))
list(zip(ts, ts, strict=True))
list(zip(ts, (1, 2, 3), strict=True))
list(zip(strict=True))
list(reversed(xs))
list(reversed(ts))
list(reversed(s))
list(reversed(d))
list(reversed(i))
! list(reversed(xs, xs))
list(reversed(range(i)))
list(reversed(zip(xs)))
list(reversed(zip(ts, ts)))
list(reversed(enumerate(ts)))
list(reversed(map(up, ts)))
list(reversed(iter(xs)))
list(reversed(iter(ts)))
list(reversed(range(0, i, 2)))
list(reversed(sorted(xs)))
list(reversed(list(zip(ts, ts))))
list(map(up, xs))
! list(map(up, xs, xs))
list(map(lambda a, c: a + c, xs, fs))
! list(map(up))
! list(map(None, xs))
list(map(abs, xs))
list(map(int, fs))
list(map(str, xs))
list(map(up, i))
! list(map(up, xs, strict=True))
list(map(*[up, xs]))
list(filter(None, xs))
list(filter(lambda v: v > 1, xs))
list(filter(i, xs))
list(filter(lambda v: v, ts))
! list(filter(None, xs, xs))
! list(filter(function=None, iterable=xs))
! list(filter(None))
list(filter(None, i))
! list(filter(False, xs))
! list(filter(0, xs))
list(filter(bool, xs))
list(iter(xs))
! list(iter(up, 3))
! next(iter(xs))
! next(iter(xs), 0)
! list(xs, xs)
! list(iterable=xs)
list(i)
list(d)
list(s)
list()
tuple(xs)
! tuple(xs, 1)
! tuple(iterable=xs)
tuple(i)
tuple(s)
tuple(ts)
tuple(d)
tuple()
dict(a=i)
dict(d)
! dict(d, a=i)
dict([(1, i)])
dict([ts, ts])
! dict([(1, i)], x=2)
dict(1)
dict(xs)
dict(zip(ws, xs))
! dict({}, a=i)
! dict(d, d)
dict()
dict({"a": i})
dict(("ab", "cd"))
! dict([(1, 2, i)])
min(xs, default=0)
min(xs)
min(i, j)
min(i, y)
max(i, y)
max(i, j, y, b)
min(ts)
max(ts, key=lambda v: -v)
max(xs, key=lambda v: -v, default=7)
max(xs, key=None, default=7)
max(ts, key=None)
max(i, j, key=lambda v: -v)
max(i, j, key=None)
! max(i, j, default=1)
! max(i, j, foo=1)
! max(xs, 1)
! max()
! max(key=up)
max(i)
! max(s)
! max(ws)
max(ws, key=len)
max(ws, key=lambda w: w)
! max(s, "b")
max(d)
max(d, key=lambda k: d[k])
! max(m, 1)
! min((i, j), (j, i))
! max([(i, 1), (j, 2)])
max(xs, default=None)
max(xs, default=i, key=up)
max([], default=i)
max((), key=up, default=i)
max((), default=i)
! max([])
max(xs, xs, key=len)
max(fs, default=0)
max(b, i)
min(b, True)
max(1, i, 1.0)
max(1.0, i, 1)
max(y, y, i)
max(1, True, i)
min(float("nan"), y)
max(y, float("nan"))
max(fs + [float("nan")])
sum(xs)
sum(fs)
sum(xs, 5)
sum(xs, start=5)
sum(xs, i)
sum(xs, 0.5)
! sum(xs, 1, 2)
! sum(iterable=xs)
sum([ts, ts], ())
sum([xs, xs], [])
sum(ws, "")
sum(ws)
sum([s, s], "")
sum(ts, "")
sum(ts, s)
sum(i)
sum([True, b])
sum((b, b))
sum([])
sum([], i)
sum((), i)
! sum()
sum(d)
sum(ts, True)
sum([], True)
sum(xs, True)
sum((), b)
any(xs)
all(xs)
any(ts)
all(ts)
any(i)
! any(xs, xs)
! any(iterable=xs)
all(s)
any(d)
all(v > 1 for v in xs)
any(v for v in ts)
any([])
all([])
! any()
sorted(xs)
sorted(xs, reverse=True)
! sorted(xs, reverse=b)
sorted(xs, reverse=1)
sorted(xs, reverse=0)
sorted(xs, key=None)
sorted(xs, key=lambda v: -v)
sorted(xs, key=lambda v: 0, reverse=True)
! sorted(xs, up)
! sorted(xs, None, True)
! sorted(iterable=xs)
sorted(ws)
sorted(ws, key=len)
sorted(ts)
sorted(s)
sorted(d)
sorted(d.items())
sorted(i)
sorted([i, j, y])
sorted([i, s])
sorted([i, None])
! sorted(xs, foo=1)
sorted(fs)
sorted([b, i])
sorted([(i, 1), (j, 0)])
! sorted([[i], [j]])
! sorted(ws, key=str.upper)
! sorted()
isinstance(i, int)
isinstance(b, int)
isinstance(i, float)
isinstance(i, (int, str))
isinstance(m, int)
isinstance(m, type(None))
isinstance(m, int | None)
isinstance(i, 5)
! isinstance(i)
! isinstance(i, int, float)
isinstance(xs, list)
isinstance(ts, tuple)
isinstance(ts, (list, tuple))
isinstance(i, object)
isinstance([i], list)
isinstance((i,), tuple)
isinstance(lambda: 1, tuple)
isinstance(lambda: 1, type(up))
isinstance(lambda: 1, object)
isinstance(zip(xs), object)
isinstance(zip(xs), zip)
! isinstance(xs.append, object)
isinstance(partial(up), partial)
isinstance(range(i), range)
isinstance(map(up, xs), map)
isinstance(enumerate(xs), enumerate)
isinstance(f"{i}", str)
isinstance(f"{y}", str)
! isinstance(slice(i), slice)
isinstance({i}, set)
isinstance(deque(xs), deque)
isinstance(deque(xs), list)
isinstance(Counter(xs), dict)
isinstance(defaultdict(int), dict)
isinstance(P(i), P)
isinstance(Q(i), P)
isinstance(P(i), Q)
isinstance(i, collections.abc.Hashable)
isinstance(xs, collections.abc.Sequence)
isinstance(lambda: 1, collections.abc.Callable)
! callable(lambda: 1)
type(i) is int
type(b) is int
type(xs) is list
type([i, j]) is list
type([i, j]) is tuple
type((i, j)) is tuple
type([up, up]) is list
type(lambda: 1) is tuple
type(lambda: 1) is type(up)
type(zip(xs)) is zip
type(zip(xs)) is tuple
type(range(i)) is range
type(range(i)) is tuple
! type(xs.append) is tuple
type(partial(up, i)) is tuple
type(partial(up, i)) is partial
type(x for x in xs) is tuple
type(f"{y}") is str
! type(slice(i)) is tuple
type(m) is int
type({i}) is set
type(deque(xs)) is deque
type(Counter(xs)) is Counter
type(defaultdict(int)) is defaultdict
type(d) is dict
type(i) == type(j)
! type("X", (), {"a": i})
! type(i, j)
! type()
type(P(i)) is P
type(P(i)).__name__
type(i).__name__
type([i]).__name__
type([lambda: i]) is list
type({"a": up}) is dict
! type(reversed(xs)) is reversed
! type(iter(xs)) is tuple
! type(None)
! type(s)
issubclass(type(i), int)
issubclass(bool, int)
getattr(P(i), "v")
getattr(P(i), "w", 1)
getattr(P(i), "w")
! getattr(P(i), s, 1)
! getattr(P(i), "v", 1, 2)
! getattr(i, "real")
getattr(i, "foo", j)
getattr(xs, "foo", j)
hasattr(P(i), "v")
hasattr(P(i), "w")
hasattr(i, "real")
hasattr(xs, "append")
hasattr([i], "append")
hasattr([i], "foo")
hasattr((i,), "append")
hasattr((i,), "index")
! hasattr(lambda: 1, "__call__")
! hasattr(i, "v", 1)
! setattr(P(i), "v", 2)
operator.add(i, j)
! operator.add(i, 1, 2)
! operator.add(i)
! operator.sub(a=i, b=j)
operator.mul(i, j)
operator.truediv(i, j)
operator.floordiv(i, j)
operator.mod(i, j)
! operator.mod(s, j)
! operator.neg(i)
! operator.lt(i, j)
! operator.eq(i, j)
! operator.itemgetter(1)(ts)
! operator.attrgetter("v")(P(i))
! operator.getitem(xs, 0)
! operator.contains(xs, 1)
! operator.pow(i, 2)
! operator.and_(i, j)
! operator.not_(i)
! operator.index(i)
math.sqrt(y)
math.sqrt(i)
math.sqrt(b)
! math.sqrt(s)
math.exp(y)
math.log(y)
math.log(i)
! math.log(i, 2)
! math.log(i, j)
! math.log(2, i)
math.log2(i)
math.floor(y)
math.ceil(y)
math.floor(i)
math.ceil(b)
! math.trunc(y)
! math.floor(s)
! math.sqrt(x=y)
! math.sqrt()
! math.sqrt(y, 1)
! math.atan2(y, 1)
! math.pow(y, 2)
! math.isnan(y)
! math.isinf(y)
! math.fabs(y)
! math.hypot(y, 1)
! math.prod(xs)
! math.gcd(i, j)
! math.comb(5, i)
! math.factorial(i)
! math.copysign(y, -1)
! math.fmod(y, 2)
math.exp(1000.0 * y)
! math.fsum(fs)
"""

METHODS = r"""
a = list(xs); a.append(1); a
! a = list(xs); a.append(1, 2); a
! a = list(xs); a.append(); a
! a = list(xs); a.append(object=1); a
a = list(xs); a.pop()
a = list(xs); a.pop(0)
a = list(xs); a.pop(-1)
a = list(xs); a.pop(i)
! a = list(xs); a.pop(b)
! a = list(xs); a.pop(y)
! a = list(xs); a.pop(0, 1)
! a = list(xs); a.pop(index=0)
a = list(xs); a.insert(0, 7); a
a = list(xs); a.insert(-1, 7); a
a = list(xs); a.insert(99, 7); a
a = list(xs); a.insert(-99, 7); a
a = list(xs); a.insert(i, 7); a
a = list(xs); a.insert(b, 7); a
a = list(xs); a.insert(y, 7); a
! a = list(xs); a.insert(0); a
! a = list(xs); a.insert(0, 1, 2); a
a = list(xs); a.extend(xs); a
a = list(xs); a.extend(a); a
a = list(xs); a.extend(ts); a
a = list(xs); a.extend(i); a
! a = list(xs); a.extend(xs, xs); a
! a = list(xs); a.extend(); a
a = list(ws); a.extend(s); a
a = list(xs); a.extend(d); a
a = list(xs); a.extend(range(i)); a
a = list(xs); a.reverse(); a
! a = list(xs); a.reverse(1); a
a = list(xs); a.clear(); a
! a = list(xs); a.clear(1); a
a = list(xs); a.copy()
! a = list(xs); a.copy(1)
a = list(xs); a.sort(); a
a = list(xs); a.sort(reverse=True); a
a = list(xs); a.sort(key=lambda v: -v); a
! a = list(xs); a.sort(None); a
! a = list(xs); a.sort(lambda v: -v); a
! a = list(xs); a.sort(foo=1); a
! a = list(xs); a.sort(reverse=i); a
a = list(xs); a.remove(2); a
a = list(xs); a.remove(i); a
! a = list(xs); a.remove(); a
! a = list(xs); a.remove(1, 2); a
a = list(xs); a.remove("x"); a
xs.count(1)
xs.count(i)
! xs.count(1, 2)
! xs.count()
xs.count("x")
xs.index(1)
xs.index(i)
! xs.index(2, 1)
! xs.index(2, 0, 2)
! xs.index(1, i)
! xs.index()
xs.index("x")
xs.index(1.0)
xs.index(True)
! xs.__len__()
! xs.__contains__(1)
! xs.__getitem__(0)
! xs.__add__([1])
! xs.__iter__()
xs.foo
xs.foo()
! ts.index(1)
! ts.index(i)
! ts.index(1, 1)
! ts.index()
! ts.index(1, 0, 1)
! ts.index("x")
! ts.count(1)
! ts.count(i)
! ts.count(1, 2)
! ts.count()
ts.foo()
ts.append(1)
tuple(xs).index(1)
! tuple(xs).index(1, 1)
tuple(xs).count(1)
tuple(xs).append(1)
(i, j).index(2)
! (i, j).index(2, 1)
! (i, j).count(2)
! (1, 2).index(i)
! (1, 2).index(i, 1)
! (1, 2).count(i)
[1, 2].index(i)
[1, 2].count(i)
! [1, 2].index(i, 1)
! "abc".index(s)
! "abc".find(s)
! "abc".count(s)
! "abc".startswith(s)
! "abc".replace(s, "x")
"-".join(ws)
! "-".join(ws, ws)
"-".join(xs)
"-".join(s)
"-".join(i)
"-".join([s, s])
"-".join((s,))
"-".join([])
! s.join(ws)
! "-".join()
! "-".join(iterable=ws)
"-".join(d)
"-".join([i, s])
! s.upper()
! s.lower()
! s.strip()
! s.split()
! s.split(",")
! s.startswith("a")
! s.endswith("a")
! s.replace("a", "b")
! s.find("a")
! s.index("a")
! s.count("a")
! s.isdigit()
! s.title()
! s.format(i)
! "{}".format(i)
! "%d" % i
! "%s" % s
! s % 1
! s.encode()
s.foo
! s.isalpha()
! s.zfill(5)
! s.ljust(5)
d.get(1)
d.get(1, 5)
d.get(i)
d.get(i, j)
! d.get(1, default=5)
! d.get()
! d.get(1, 2, 3)
d.get("x")
d.get(1.0)
d.get(True)
d.get(y)
d.get(b)
d.get(m)
d[1.0]
d[True]
d[s]
d[xs]
d.get(xs)
d[m]
1.0 in d
s in d
xs in d
m in d
a = dict(d); a.pop(1)
! a = dict(d); a.pop(1, 5)
! a = dict(d); a.pop(i, None)
! a = dict(d); a.pop()
! a = dict(d); a.pop(1, 2, 3)
! a = dict(d); a.pop(key=1)
a = dict(d); a.setdefault(1); a
a = dict(d); a.setdefault(1, 9); a
a = dict(d); a.setdefault(i, 9), a
! a = dict(d); a.setdefault(1, 9, 9); a
! a = dict(d); a.setdefault(); a
! a = dict(d); a.setdefault(1, default=9); a
! a = dict(d); a.update({1: 5}); a
! a = dict(d); a.update(a=1); a
! a = dict(d); a.popitem()
a = dict(d); a.clear(); a
! a = dict(d); a.clear(1); a
! a = dict(d); a.copy()
list(d.keys())
! list(d.keys(1))
list(d.values())
! list(d.values(1))
list(d.items())
! list(d.items(1))
len(d.keys())
len(d.items())
len(d.values())
1 in d.keys()
! 1 in d.values()
(1, 2) in d.items()
! d.keys() == [1]
! d.keys()
! d.values()
! d.items()
sum(d.values())
! d.fromkeys([1])
d.foo
d.foo()
! d | {1: 5}
! d.__len__()
! d.keys() & {1}
a = d.keys(); d[9] = 9; list(a)
a = d.values(); d[9] = 9; list(a)
a = d.items(); d[9] = 9; list(a)
isinstance(d.keys(), list)
type(d.keys()) is list
! d.keys()[0]
! d.values()[0]
{"a": i}.get("a")
{"a": i}.get("b")
! {"a": i}.get("b", 1, 2)
! {"a": i}.get()
{"a": i}.get(s)
{"a": i}.get(s, 5)
! {"a": i}.get("a", default=1)
{"a": i}.get(i, 5)
! {"a": i}.keys()
! {"a": i}.keys(1)
list({"a": i}.keys())
list({"a": i}.items())
! list({"a": i}.values(1))
! {"a": i}.pop("a")
! {"a": i}.copy()
! {"a": i}.update({"b": 1})
! {"a": i}.setdefault("a", 1)
! {"a": i}.setdefault("b", 1)
isinstance({"a": i}.keys(), list)
! {"a": i}.keys()[0]
! {"a": i}.keys() == ["a"]
{"a": i}["b"]
{"a": i}[s]
{"a": i}[1]
"a" in {"a": i}
s in {"a": i}
1 in {"a": i}
i in {"a": i}
{"a": i} == {"a": 2}
{"a": i, "b": 1} == {"b": 1, "a": 2}
{1: i} == {1: 2}
! {"a": i} | {"b": 1}
len({"a": i})
bool({"a": i})
{1: i, 1: j}
{"a": i, "a": j}
{i: 1, j: 2}
! {True: i, 1: j}
! {1: i, 1.0: j}
! {i: 1, b: 2}
! {b: i, 1: j}
! {i: "x", y: 1}
! deque(xs)
list(deque(xs))
len(deque(xs))
deque(xs)[0]
deque(xs)[i]
deque(xs)[-1]
! deque(xs)[0:1]
list(deque(xs, 2))
list(deque(xs, maxlen=2))
list(deque(xs, i))
list(deque(xs, -1))
list(deque(xs, 0))
list(deque(xs, None))
list(deque(maxlen=2))
deque(xs, 2).maxlen
deque(xs).maxlen
list(deque(iterable=xs))
! list(deque(items=xs))
list(deque(xs, y))
list(deque(i))
list(deque(s))
! list(deque(xs, 2, 3))
a = deque(xs); a.append(1); list(a)
a = deque(xs); a.appendleft(1); list(a)
a = deque(xs, 2); a.appendleft(1); list(a)
a = deque(xs, 2); a.append(1); list(a)
a = deque(xs, 0); a.append(1); list(a)
a = deque(xs, 0); a.appendleft(1); list(a)
a = deque(xs); a.extend(xs); list(a)
a = deque(xs); a.extend(a); list(a)
a = deque(xs); a.extendleft(a); list(a)
a = deque(xs); a.extendleft(xs); list(a)
a = deque(xs, 3); a.extendleft(xs); list(a)
! a = deque(xs, 3); a.insert(0, 1); list(a)
! a = deque(xs); a.insert(0, 1); list(a)
! a = deque(xs); a.insert(i, 1); list(a)
a = deque(xs); a.pop()
a = deque(xs); a.popleft()
! a = deque(xs); a.pop(0)
a = deque(xs); a.rotate(); list(a)
a = deque(xs); a.rotate(-1); list(a)
a = deque(xs); a.rotate(i); list(a)
! a = deque(xs); a.rotate(n=1); list(a)
a = deque(xs); a.rotate(0); list(a)
! a = deque(xs); a.rotate(y); list(a)
a = deque(xs); a.rotate(b); list(a)
a = deque(xs); a.clear(); list(a)
a = deque(xs); a.reverse(); list(a)
a = deque(xs); a.count(1)
! a = deque(xs); a.index(1)
! a = deque(xs); a.index(1, 1)
! a = deque(xs); a.remove(1); list(a)
! a = deque(xs); a.copy()
! a = deque(xs); list(a.copy())
a = deque(xs); a[0] = 5; list(a)
a = deque(xs); a[i] = 5; list(a)
! a = deque(xs); del a[0]; list(a)
deque(xs) == deque(xs)
deque(xs) == xs
deque(xs) == deque(xs, 9)
deque(xs) != deque(xs)
deque(xs) != deque([1])
! deque(xs) < deque(fs)
! deque(xs) + deque(xs)
! deque(xs) * 2
! a = deque(xs); a += [1]; list(a)
1 in deque(xs)
bool(deque(xs))
! str(deque(xs))
deque(xs).held
deque(xs).most
sum(deque(xs))
max(deque(xs), default=0)
sorted(deque(xs))
list(reversed(deque(xs)))
[v for v in deque(xs)]
tuple(deque(xs))
! hash(deque(xs))
list(zip(deque(xs), xs))
list(enumerate(deque(xs)))
any(deque(xs))
Counter(xs)[1]
Counter(xs)[9]
Counter(xs).get(9)
Counter(xs).most_common()
Counter(xs).most_common(1)
Counter(xs).most_common(0)
Counter(xs).most_common(-1)
Counter(xs).most_common(None)
Counter(xs).most_common(i)
Counter(xs).most_common(n=1)
Counter(ws).most_common()
Counter(s)["a"]
! Counter(a=i)["a"]
Counter({1: i})[1]
Counter(d)[1]
Counter(None)[1]
Counter(Counter(xs))[1]
! Counter(iterable=xs)[1]
! Counter(xs, xs)
len(Counter(xs))
list(Counter(xs))
list(Counter(xs).items())
list(Counter(xs).keys())
list(Counter(xs).values())
! list(Counter(xs).elements())
! Counter(xs).total()
Counter(xs) == Counter(xs)
Counter(xs) == {1: 2, 2: 1, 3: 1}
! Counter(xs) + Counter(xs)
! Counter(xs) - Counter(ts)
a = Counter(xs); a.update(xs); a[1]
a = Counter(xs); a.update(d); a[1]
a = Counter(xs); a.update(); a[1]
! a = Counter(xs); a.subtract(xs); a[1]
a = Counter(xs); a[1] += 1; a[1]
a = Counter(xs); a[9]; len(a)
a = Counter(xs); del a[1]; len(a)
a = Counter(xs); a.pop(1)
! a = Counter(xs); a.pop(1, 0)
a = Counter(xs); a.setdefault(9, 1)
a = Counter(xs); 9 in a
a = Counter(xs); 1 in a
bool(Counter(xs))
max(Counter(xs), default=0)
sum(Counter(xs).values())
isinstance(Counter(xs), Counter)
isinstance(Counter(xs), defaultdict)
isinstance(defaultdict(int), Counter)
isinstance(defaultdict(int), defaultdict)
sorted(Counter(xs))
dict(Counter(xs))
a = Counter(xs); a.foo
Counter(xs).factory
Counter(xs).held
a = defaultdict(int); a[i] += 1; dict(a)
a = defaultdict(int); a[i]; dict(a)
a = defaultdict(int); a[1]; len(a)
a = defaultdict(list); a[i].append(1); dict(a)
a = defaultdict(lambda: 5); a[i]
! a = defaultdict(None); a[i]
! a = defaultdict(); a[i]
! a = defaultdict(int, d); a[1]
! a = defaultdict(5); a[1]
a = defaultdict(int); a.get(i)
a = defaultdict(int); a.get(i, 7)
a = defaultdict(int); a.pop(i)
! a = defaultdict(int); a.pop(i, 7)
a = defaultdict(int); a.setdefault(i, 3); dict(a)
! a = defaultdict(int); a.default_factory
a = defaultdict(int); a[1] = 2; a == {1: 2}
a = defaultdict(int); a[1] = 2; {1: 2} == a
! a = defaultdict(int); a[1] = 2; del a[2]; a
! a = defaultdict(int); a[1] = 2; a.update({1: 1})
! a = defaultdict(int); a[1] = 2; a.copy()
! a = defaultdict(int); a[1] = 2; a | {1: 2}
a = defaultdict(int); a[1] = 2; list(a.items())
a = defaultdict(int); a[1] = 2; list(a)
a = defaultdict(int); a[1] = 2; bool(a)
! a = defaultdict(int); a
a = defaultdict(int); i in a
len(set(xs))
! set(xs)
sorted(set(xs))
set(xs) == {1, 2, 3}
{1, 2, 3} == set(xs)
set(xs) == xs
set(xs) != set(ts)
set(xs) | set(ts) == set(xs)
sorted(set(xs) | set(ts))
sorted(set(xs) & set(ts))
sorted(set(xs) - set(ts))
sorted(set(xs) ^ set(ts))
! sorted(set(xs) | xs)
! sorted(set(xs) & xs)
! sorted(set(xs) - xs)
! sorted(set(xs) ^ xs)
set(xs) <= set(ts)
! set(xs) <= xs
set(xs) < set(ts)
! set(xs) >= ts
set(xs) > set(ts)
! set(xs) < xs
sorted(set(xs).union(ts))
! sorted(set(xs).union(ts, fs))
sorted(set(xs).union())
sorted(set(xs).intersection(ts))
sorted(set(xs).intersection(ts, xs))
sorted(set(xs).intersection())
sorted(set(xs).difference(ts))
sorted(set(xs).difference(ts, xs))
sorted(set(xs).difference())
! sorted(set(xs).symmetric_difference(ts))
set(xs).issubset(ts)
set(xs).issuperset(ts)
set(xs).isdisjoint(ts)
a = set(xs); a.add(1); len(a)
! a = set(xs); a.add(1, 2); len(a)
a = set(xs); a.discard(1); len(a)
a = set(xs); a.remove(1); len(a)
! a = set(xs); a.pop()
a = set(xs); a.clear(); len(a)
a = set(xs); a.update(ts); len(a)
! a = set(xs); a.update(ts, fs); len(a)
a = set(xs); a |= {1}; len(a)
! a = set(xs); a |= xs; len(a)
a = set(xs); a &= {1}; len(a)
a = set(xs); a -= {1}; len(a)
a = set(xs); a ^= {1}; len(a)
a = set(xs); a.copy() == a
! a = set(xs); a.intersection_update(ts); len(a)
bool(set(xs))
1 in set(xs)
i in {1, 2}
s in {"abc"}
1.0 in set(xs)
True in set(xs)
len(set())
! len(set(xs, xs))
! len(set(items=xs))
len(set(i))
len(set(s))
! len({*xs})
len({i, j})
len({v for v in xs})
! len(set([1, True, 1.0, i]))
max(set(xs), default=0)
sum(set(xs))
! any(set(xs))
! all(set(xs))
! list(set(xs))
! [v for v in set(xs)]
! sorted(set(ws), key=len)
! len(set([(i, j)]))
! len(set(fs))
! len(set([b, i]))
! hash(set(xs))
! frozenset(xs)
set(xs).held
! str(set(xs))
sorted(set(xs), reverse=True)
isinstance(set(xs), set)
isinstance(set(xs), dict)
! tuple(set(xs))
! list(zip(set(xs), xs))
! list(enumerate(set(xs)))
len(set(d))
set(d) == set(d.keys())
! set(xs) == d.keys()
! (lambda a, /: a)(a=i)
(lambda a, /, **k: a)(i)
(lambda a, b=1: a - b)(i)
(lambda a, *r: len(r))(i, j, y)
(lambda *, a: a)(a=i)
! (lambda *, a: a)(i)
! (lambda a: a)()
! (lambda a: a)(i, a=j)
! (lambda a: a)(i, c=j)
"""

VALUES = r"""
t = (i, j); t is t
t = (i, j); u = t; t is u
t = (i, j); t is (i, j)
t = [i, j]; t is t
t = [i, j]; u = [i, j]; t is u
t = (i, j); t is not None
f = lambda: i; f is f
f = lambda: i; g = lambda: i; f is g
f = lambda: i; f is None
! f = lambda: i; f == f
! f = lambda: i; f == None
! f = lambda: i; f == 1
! f = lambda: i; f != 1
! f = lambda: i; f in [1, 2]
! f = lambda: i; f in (f,)
f = lambda: i; bool(f)
f = lambda: i; not f
! f = lambda: i; len(f)
! f = lambda: i; f + 1
! f = lambda: i; f < 1
! f = lambda: i; f[0]
! f = lambda: i; f.__name__
! f = lambda: i; f.foo
! f = lambda: i; -f
! f = lambda: i; str(f) == "x"
! f = lambda: i; f"{f}" == "x"
! f = lambda: i; [v for v in f]
f = lambda: i; (f, 1)[1]
! f = lambda: i; (f, 1) == (f, 1)
! f = lambda: i; (f, 1) == (1, f)
f = lambda: i; isinstance(f, tuple)
! f = lambda: i; {f: 1}[f]
! f = lambda: i; hash(f)
! f = lambda: i; callable(f)
! f = lambda: i; abs(f)
f = lambda: i; f is up
f = up; f is up
up is up
up == up
up == i
xs.append is None
! xs.append is xs.append
! xs.append == xs.append
a = xs.append; a is a
xs is xs
xs is list(xs)
xs == xs
xs == list(xs)
xs == tuple(xs)
ts == (1, 2)
ts == [1, 2]
[1, 2] == ts
(i, j) == [i, j]
[i, j] == [i, j]
[i, j] == (i, j)
[i] == [1.0]
(i, "a") == (2, "a")
(i, "a") == (2, 1)
i == "a"
i == None
i == 2.0
b == 1
b is True
i is True
s == "abc"
y is y
m is None
m == None
None == m
m is m
m == 1
not m
m or 5
m and 5
xs or [1]
xs and xs[0]
d or None
s or "x"
y or 1
ts or 1
() or i
[] or i
{} or i
"" or i
not xs
not ts
not d
not y
not s
not range(i)
not d.keys()
not d.items()
not zip(xs)
not map(up, xs)
not (v for v in xs)
bool(range(i))
bool(range(0, i))
bool(d.values())
bool(enumerate(()))
bool([i])
bool((i,))
bool([])
bool({"a": i})
bool({})
1 if d.keys() else 2
1 if range(i) else 2
r = range(i); len(r)
a = d.keys(); len(a)
a = d.keys(); 1 in a
range(i) is None
! range(i) == None
(v for v in xs) is None
! (v for v in xs) == 1
! zip(xs) == 1
! range(i) == 1
f"{i}"
f"{s}"
f"{i!r}"
f"{s!r}"
f"{b}"
f"{m}"
f"{m!r}"
! f"{y}"
! f"{xs}"
! f"{i:3d}"
f"{i}{s}"
f"{i}" == "2"
! f"{y}" == "1.5"
! f"{y:.1f}"
! f"{ts}"
f"{None}"
f"{b!r}"
! f"{i!a}"
f"{i=}"
f"{'a'}" + s
str([1, 2])
! str((1, i))
len(f"{i}")
! len(f"{y}")
! f"{y}"[0]
! f"{y}" + "a"
{"a": f"{i}"}
[f"{i}"]
P(i) == P(i)
P(i) is P(i)
a = P(i); a is a
a = P(i); a == a
a = P(i); a != a
a = P(i); a in [a]
a = P(i); bool(a)
a = P(i); len(a)
a = P(i); a < a
a = P(i); a + 1
a = P(i); a[0]
a = P(i); [v for v in a]
! a = P(i); str(a) == "x"
a = P(i); a == 1
a = P(i); a == None
a = P(i); isinstance(a, P)
a = P(i); type(a) == P
a = P(i); type(a) is type(a)
a = P(i); type(a)(3).v
a = P(i); a.__class__ is P
! a = P(i); a.__dict__
! a = P(i); vars(a)
! a = P(i); hash(a)
i.__class__ is int
xs.__class__ is list
ts.__class__ is tuple
[i].__class__ is list
deque(xs).__class__ is deque
type(ts)([1])
type(deque(xs))([1])[0]
type(i)(y)
type(b)(i)
type(s)(i)
type(d)()
type(i) in (int, str)
! type(i) in {int: 1}
type(i) == int
! {int: 1}[type(i)]
type(m) in (int, None)
type(y).__name__
type(xs).__name__
isinstance(i, bool)
isinstance(b, bool)
isinstance(y, (int, float))
isinstance(None, type(None))
isinstance(m, (int, type(None)))
isinstance(s, collections.abc.Iterable)
isinstance(d, collections.abc.Mapping)
isinstance(deque(xs), collections.abc.Sequence)
isinstance(set(xs), collections.abc.Set)
isinstance(range(i), collections.abc.Sequence)
isinstance(xs, collections.abc.Callable)
isinstance(P, type)
isinstance(up, type)
isinstance(1.0, int)
isinstance(True, int)
list(d.keys())
sorted(d.keys())
[k for k in d.keys()]
[(k, v) for k, v in d.items()]
sum(d.keys())
max(d.values())
tuple(d.keys())
set(d.keys()) == set(d)
list(zip(d.keys(), d.values()))
list(enumerate(d.keys()))
list(reversed(d.keys()))
! list(reversed(d.items()))
d.keys() is None
list(map(up, d.keys()))
" ".join(f"{k}" for k in d.keys())
[*d.keys()]
(*d.keys(), 1)
a, *r = d.keys(); r
! max(*d.keys(), 0)
! next(iter(d.keys()))
list(d.keys())[0]
dict(d.items())
dict(zip(d.keys(), d.values()))
{k: v for k, v in d.items()}
all(d.values())
any(d.keys())
list(islice(count(i), 3))
list(islice(count(i), 1, None, 2)) if i > 99 else 0
list(islice(repeat(i), 2))
list(zip(xs, repeat(i)))
list(zip(repeat(1), xs))
list(zip(repeat(0), ts))
list(map(lambda a, c: a + c, xs, repeat(i)))
list(islice((v for v in xs), 1))
list(islice(zip(xs, fs), 1))
list(islice(map(lambda v: 1 // v, [1, 0]), 1))
list(islice(map(lambda v: 6 // v, ts), 1, None))
list(enumerate(repeat(i))) if i > 99 else 0
[v for v, k in zip(repeat(i), range(3))]
list(islice(range(1000), i * i))
list(islice("abcdef", i * i))
list(islice(d.items(), 1))
list(islice(iter(xs), 2))
list(combinations(ts, 2))
list(combinations((1, 2, 3), 2))
list(combinations(range(i * i), 3))
len(list(combinations(range(6), 4)))
list(combinations(xs, 2.0))
list(combinations(s, 2))
list(product(xs, repeat=0))
list(product(xs, repeat=3)) if i < 3 else 0
list(product(repeat=2))
list(product(xs, ts, repeat=2))
list(product(xs, repeat=-1))
! list(product(xs, repeat=i))
list(product((v for v in xs), repeat=2))
list(product(xs, repeat=1.5))
"""
