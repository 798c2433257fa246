"""Families of constructs that have state: objects, foreign ones, iterators, generators, tensors."""

from __future__ import annotations

from checks.fuzz.family import Family

IDENTITY = Family(
    module="""\
class Node:
    def __init__(self, w):
        self.w, self.next = w, None


LEFT, RIGHT = Node(2.0), Node(torch.tensor(3.0))
LEFT.next, RIGHT.next = RIGHT, LEFT
HOLD = Node(1.0)
HOLD.at, HOLD.seen = LEFT, None
""",
    start=(
        "node = LEFT",
    ),
    statements=(
        "HOLD.at = HOLD.at.next", "node = node.next", "HOLD.seen = {f}", "HOLD.seen = None",
        "HOLD.at = RIGHT if HOLD.at is LEFT else LEFT", "{v} = {v} * HOLD.at.w",
        "{u} = node.w * {f}", "{u} = {f} if node is LEFT else -{f}", "{u} = {f} is {f}",
        "node = LEFT if {n} > 1 else RIGHT", "{u} = {v}", "{u} = {n} is None",
        "{u} = node is HOLD.at", "HOLD.at = node", "{u} = [LEFT, RIGHT].index(node)",
        "{u} = {v} if {v} is not None else {f}", "{u} = {b}.any() and {f}",
        "{u} = {b}.all() or {f}", "{u} = {f}.sum() > 0 and {n}", "{u} = 0 < {f}.sum() < 2",
        "{u} = {b}.any() and {b}.all()", "{u} = {n} and {b}.any()", "{u} = {p} > 0 or {f}",
        "{u} = {n} > 1 and {f}.sum() > 0 and {p}", "{u} = {f}.sum() or None",
        "{u} = [{n} < {p} < 2, not {b}.any()]",
    ),
    numbers=(
        "int(HOLD.at is LEFT)", "int(node is RIGHT)", "int(HOLD.seen is not None)",
    ),
    tests=(
        "HOLD.at is LEFT", "HOLD.seen is None", "{f} is {f}", "({b}.any().item()) is True",
        "node is not RIGHT", "id(node) == id(HOLD.at)", "{n} is None", "node is HOLD.at.next",
        "node in (HOLD.at,)", "HOLD.seen is {v}", "{p} is None", "bool({n}) is False",
    ),
)  # fmt: skip

MODEL = Family(
    module="""\
class Limited:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, model, owner=None):
        return self if model is None else getattr(model, self.name)

    def __set__(self, model, value):
        setattr(model, self.name, value % 7)


class Model:
    limit = Limited()
    made = 0

    def __init__(self, n, h):
        self.n, self.h, self.limit = n, h, n
        Model.made += 1

    def __call__(self, v):
        self.n += 1
        return v * self.n

    def __getitem__(self, key):
        return self.h.reshape(-1)[key % 2] if isinstance(key, int) else self.h.mean()

    def __setitem__(self, key, v):
        self.n, self.h = self.n + 1, self.h * 0.5 + v.mean()

    def __delitem__(self, key):
        self.n -= 1

    def __len__(self):
        return abs(self.n) % 4

    def __bool__(self):
        return bool(self.h.sum() > 0)

    def __eq__(self, other):
        return self.n == (other.n if isinstance(other, Model) else other)

    def __hash__(self):
        return 7

    def __lt__(self, other):
        return self.n < other.n

    def __contains__(self, v):
        return v == self.n

    def __iter__(self):
        for k in range(len(self)):
            yield self.h * k

    def __add__(self, other):
        return Model(self.n + 1, self.h + (other.h if isinstance(other, Model) else other))

    def __radd__(self, other):
        return other - self.h

    def __iadd__(self, other):
        self.h = self.h + other
        return self

    def __neg__(self):
        return Model(-self.n, -self.h)

    def __float__(self):
        return float(self.h.sum())

    def __index__(self):
        return self.n % 3

    def __getattr__(self, name):
        if name.startswith("extra"):
            return self.n * 2
        raise AttributeError(name)

    def __enter__(self):
        self.n += 2
        return self

    def __exit__(self, *error):
        self.n -= 1
        return False

    def __str__(self):
        return f"Model {self.n}"

    @property
    def double(self):
        return self.h * 2

    @double.setter
    def double(self, v):
        self.h = v * 0.5

    @functools.cached_property
    def once(self):
        return self.h.sum()

    @classmethod
    def fresh(cls, h):
        return cls(cls.made, h)


KEPT = Model(1, rand(3))
""",
    start=(
        "m, kept = Model(2, x), KEPT",
    ),
    statements=(
        "{u} = {o}({f})", "{o}[{n}] = {f}", "{o}.n += 1", "{u} = {o}[{n}]", "{o} += {c}",
        "{u} = {o} + {c}", "{u} = {c} + {o}", "{u} = {o}.double", "{o}.double = {f}",
        "{u} = {o}.once", "{u} = {o}.extra", "{o}.limit = {n}", "{u} = Model({n}, {f})",
        "{u} = -{o}", "with {o} as {u}:\n    {u}.h = {f}",
        "for {u} in {o}:\n    {v} = {v} + {u}.sum()", "{o}.n = {n}", "{o}.h = {f}", "del {o}[0]",
        "{u} = Model.fresh({f})", "{u} = str({o})", "{u} = {o} or {o}", "{u} = {o} < {o}",
        "{u} = [r.sum() for r in {o}]", "{u} = max({o}, {o}).n", "{u} = {({o}): {f}}[{o}]",
        "{u} = len({o})", "{u} = {o}['mean']", "Model.made = {n}", "setattr({o}, 'n', {n})",
        "{u} = getattr({o}, 'none', {n})", "{u} = {o} == {n}",
    ),
    numbers=(
        "len({o})", "{o}.n", "{o}.limit", "{o}.extra", "float({o})", "[5, 6, 7][{o}]",
        "Model.made", "len(list({o}))", "sorted([{o}, {o}])[0].n", "int({o} == {o})",
        "range(4)[{o}]",
    ),
    tests=(
        "{o}", "not {o}", "{o} == {o}", "{n} in {o}", "len({o}) > 1", "{o} < {o}",
        "{o}.limit > {k}", "{o} != {n}", "hasattr({o}, 'extra')", "hasattr({o}, 'other')",
        "isinstance({o}, Model)",
    ),
)  # fmt: skip

COUNTERS = Family(
    module="""\
class Slots:
    __slots__ = ("n", "h", "items")

    def __init__(self):
        self.n, self.h, self.items = 0, torch.zeros(3), []

    def step(self):
        self.n += 1
        return self.n


@dataclasses.dataclass
class Record:
    n: int = 0
    h: object = None
    items: list = dataclasses.field(default_factory=list)

    def push(self, v):
        self.n, self.h = self.n + 1, v
        return len(self.items)


def counter():
    n = 0

    def count(by=1):
        nonlocal n
        n += by
        return n

    return count


def remember(v, seen=[]):
    seen.append(v)
    return len(seen)


def called(v):
    called.calls = getattr(called, "calls", 0) + 1
    return v * called.calls


SLOTS, RECORD, SPACE, COUNT = Slots(), Record(), types.SimpleNamespace(n=1, h=None), counter()
TABLE = {"n": 0, "h": None}
TOTAL = 0
Stats = type("Stats", (), {"n": 0})
""",
    start=(
        "slots, record, space, count = Slots(), Record(), types.SimpleNamespace(n=0), counter()",
    ),
    statements=(
        "SLOTS.n += 1", "{u} = SLOTS.step()", "SLOTS.h = {f}", "SLOTS.items.append({n})",
        "{u} = RECORD.push({f})", "RECORD.items = RECORD.items + [{n}]", "SPACE.n += {n} % 3",
        "SPACE.h = {f}", "{u} = COUNT()", "{u} = count({n} % 4)", "{u} = remember({k})",
        "{u} = called({f})", "TABLE['n'] += 1", "TABLE['h'] = {f}", "TABLE[{n} % 3] = {n}",
        "Stats.n += 1", "slots.n = {n}", "record.h = {f}", "record.n += {n}", "space.n = {n}",
        "space.other = {f}", "{u} = record.h", "TABLE.update(n={n})", "{u} = TABLE.pop('h', None)",
        "TABLE.setdefault('h', {f})", "record = dataclasses.replace(record, n={n})",
        "{u} = record == Record(1)", "space = SPACE", "globals()['TOTAL'] = {n}",
        "{u} = (lambda n={n}: n + 1)()", "{u} = functools.partial(count, 2)()",
        "space.__dict__['n'] = {n}", "{u} = vars(space)['n']", "{u} = slots.step() + slots.step()",
    ),
    numbers=(
        "SLOTS.n", "RECORD.n", "SPACE.n", "COUNT()", "count()", "len(SLOTS.items)", "TABLE['n']",
        "Stats.n", "slots.step()", "record.n", "space.n", "len(TABLE)", "remember(1)",
        "len(RECORD.items)",
    ),
    tests=(
        "SLOTS.step() < 3", "COUNT() % 2 == 0", "count() < 3", "TABLE['h'] is None", "space.n > 1",
        "(record.n < 2)", "1 in TABLE", "remember({f}) < 4", "SPACE.n == {n}", "Stats.n > 1",
    ),
)  # fmt: skip

FOREIGN = Family(
    module="""\
ARRAY = np.arange(4.0)
BYTES = bytearray(b"abc")
RING = collections.deque([1, 2, 3], maxlen=3)
TALLY = collections.Counter("aab")
ORDER = collections.OrderedDict(a=1, b=2, c=3)
MANY = collections.defaultdict(int)
OUT = io.StringIO()
HEAP = [3, 5, 4]
CELLS = array.array("d", [0.5, 1.5])
CHAIN = collections.ChainMap({"a": 1}, {"b": 2})
""",
    start=(
        "array_, ring, tally = np.zeros(3), collections.deque([1, 2]), collections.Counter()",
        "out, order = io.StringIO(), collections.OrderedDict(a=1, b=2)",
    ),
    statements=(
        "ARRAY[{n} % 4] += 1", "ARRAY[0] = {k}", "BYTES.append(1)", "BYTES[0] = 7",
        "RING.append({n})", "RING.rotate(1)", "{u} = RING.popleft() if RING else 0",
        "TALLY['a'] += 1", "TALLY.update('ab')", "ORDER.move_to_end('a')", "ORDER['d'] = {n}",
        "MANY['k'] += {n} % 3", "OUT.write('a')", "heapq.heappush(HEAP, {k})",
        "{u} = heapq.heappop(HEAP) if HEAP else 0", "CELLS.append(0.5)", "CELLS[0] = {p}",
        "CHAIN['a'] = {n}", "array_[1] = {k}", "array_ += 1", "ring.append({f})",
        "ring.extendleft([{n}, {k}])", "tally[{n} % 2] += 1", "out.write(str({n}))",
        "order.move_to_end('a')", "{u} = order.popitem()", "{u} = list(ring)",
        "{u} = out.getvalue()", "{u} = tally.most_common(1)",
        "{u} = ring.pop() if len(ring) > 1 else None", "{u} = torch.from_numpy(array_.copy())",
        "array_[:] = 2", "{u} = dict(tally)", "{u} = torch.tensor(array_)", "{u} = list(order)",
        "ring.reverse()", "tally.subtract(a=1)", "{u} = float(array_.sum())", "{u} = array_ + 1",
        "{u} = bytes(BYTES)",
    ),
    numbers=(
        "float(ARRAY[1])", "BYTES[0]", "len(RING)", "TALLY['a']", "list(ORDER.values())[0]",
        "MANY['k']", "HEAP[0]", "CELLS[0]", "int(array_[1])", "len(ring)", "tally[0]",
        "len(out.getvalue())", "ring[0] if ring and isinstance(ring[0], int) else 0", "CHAIN['a']",
        "sum(order.values())",
    ),
    tests=(
        "ARRAY[0] > 1", "len(RING) > 2", "TALLY['a'] > 2", "next(iter(ORDER)) == 'a'",
        "BYTES[0] == 7", "HEAP and HEAP[0] > 3", "array_.any()", "1 in ring", "RING.popleft() < 3",
        "out.tell() > 1",
    ),
)  # fmt: skip

ITERATORS = Family(
    module="""\
NUMBERS = iter(range(1000))
COUNTING = itertools.count(1)
""",
    start=(
        "it, pairs = iter([1, 2, 3, 4]), enumerate([x, x * 2])",
        "rows, both = iter(x.unbind(0)), zip([1, 2, 3], x)",
    ),
    statements=(
        "{u} = next(it, 0)", "{u} = next(NUMBERS)", "{u} = next(COUNTING)", "{u} = sum(it)",
        "for {u} in it:\n    {v} = {v} + {u}\n    if {u} > {n}:\n        break",
        "for {u} in it:\n    if {f}.sum() > {c}:\n        break\n    {v} = {v} * {u}",
        "for {u} in rows:\n    {v} = {v} + {u}\n    if {u}.sum() > {c}:\n        break",
        "{u} = next(rows, None)", "{u} = list(it)",
        "for {u}, r in pairs:\n    {v} = {v} + r.mean() * {u}",
        "for {u}, r in both:\n    {v} = {v} - r.sum() * {u}\n    break",
        "{u} = next(both, (0, x))[0]", "it = iter([{n}, {k}, 5])", "it = itertools.chain(it, [7])",
        "{u} = list(itertools.islice(it, 2))", "it = map(lambda k: k + {k}, it)",
        "it = filter(lambda k: k > {k}, [1, 2, 3, {n}])",
        "{u} = list(itertools.accumulate([1, {n}, 2]))", "{u} = list(zip(it, it))",
        "it = reversed([1, {n}])", "{u} = [k * {n} for k in it]", "{u} = any(k > {n} for k in it)",
        "it = itertools.cycle([1, 2])",
        "{u} = list(itertools.takewhile(lambda k: k < {n}, [1, 2, 3]))",
        "{u} = max(it, default=0)", "it = iter(range({n} % 4))", "{u} = {n} in it",
        "{u} = dict(zip('ab', [{n}, {f}]))", "{u} = [*enumerate([{n}, 2], 1)]",
        "{u}, *_ = [{n}, 3, 4]", "{u} = sum(a * b for a, b in zip([1, {n}], [3, 4]))",
        "d = {1: {n}, 2: 3}\nfor {u} in d.items():\n    {v} = {v} * {u}[1]",
        "it = iter({1: 2, 3: 4})",
    ),
    numbers=(
        "next(it, 0)", "next(NUMBERS)", "sum(itertools.islice(it, 1))", "len(list(it))",
        "next(COUNTING)",
    ),
    tests=(
        "next(it, None) is not None", "next(it, 0) > 1", "next(NUMBERS) % 2 == 0", "any(it)",
        "all(it)", "next(both, None) is None", "next(rows, x).sum() > 0", "2 in it",
        "next(COUNTING) < 3",
    ),
)  # fmt: skip

RANDOM = Family(
    module="GENERATOR = torch.Generator().manual_seed(3)\n",
    start=(
        "g = torch.Generator().manual_seed(1)",
    ),
    statements=(
        "torch.manual_seed({k} % 3)", "{u} = torch.rand(3)", "{u} = torch.randn(2)",
        "GENERATOR.manual_seed(1)", "{u} = torch.rand(3, generator=GENERATOR)",
        "{u} = torch.randn(3, generator=g)", "{v} = {v} + torch.rand(())",
        "with torch.random.fork_rng():\n    {u} = torch.rand(2)",
        "with torch.random.fork_rng():\n    torch.manual_seed({k} % 3)\n    {u} = torch.randn(2)",
        "state = torch.get_rng_state()\n{u} = torch.rand(2)\ntorch.set_rng_state(state)",
        "{u} = torch.randint(0, 5, (2,))", "{u} = F.dropout({f}, 0.5)",
        "{u} = torch.bernoulli(torch.full((3,), 0.5))", "{u} = torch.randperm(4)",
        "{u} = torch.rand_like({f})", "{u} = torch.initial_seed()",
        "{v} = {v} + torch.randn_like({v}) * 0.1",
        "{u} = torch.empty(3).uniform_(generator=GENERATOR)", "{u} = torch.normal(0.0, 1.0, (2,))",
        "g.manual_seed({n})", "random.seed({k})", "{u} = random.random()",
        "{u} = random.randint(0, 3)", "torch.manual_seed({n})",
        "{u} = torch.multinomial(torch.ones(4), 2)", "{u} = {f}.clone().normal_()",
        "{u} = g.get_state().sum()",
    ),
    numbers=(
        "torch.rand(()).item()", "int(torch.randint(0, 4, ()))",
        "int(torch.randint(0, 4, (), generator=GENERATOR))",
    ),
    tests=(
        "torch.rand(()) > 0.5", "torch.rand(1, generator=g) > 0.5",
        "torch.randint(0, 2, ()).item() == 1",
    ),
)  # fmt: skip

READ_BACK = Family(
    module="""\
STEPS = torch.tensor(0)
PLACES = ints(4).abs()
STORE = rand(4)
PARAMETER = nn.Parameter(rand(3), requires_grad=False)
CACHE = {"k": torch.zeros(4), "n": torch.tensor(1.0)}
""",
    start=(
        "own, z = torch.zeros(4), x.clone()",
    ),
    statements=(
        "STEPS.add_(1)", "STORE.mul_({c})", "STORE[int(STEPS) % 4] = {p}",
        "STORE[STEPS % 4] = {f}.mean()", "{u} = int(STEPS)", "{u} = float(STORE[0])",
        "{u} = STORE.tolist()[1]", "{u} = STORE.sum().item()", "{u} = STORE[: int(STEPS) % 5]",
        "for {u} in range(int(STEPS) % 4):\n    {v} = {v} + {u}", "z[0] += 1", "z.add_({p})",
        "own[{n} % 4] = {n}", "own[0] = {f}.sum()", "{u} = own.tolist()", "{u} = float(z[0])",
        "{u} = z.sum().item()", "PARAMETER.add_(0.5)", "{u} = PARAMETER.tolist()",
        "PLACES[0] += 1", "{u} = PLACES.tolist()[{n} % 4]", "CACHE['n'] += 1",
        "CACHE['k'][int(CACHE['n']) % 4] = {p}", "{u} = CACHE['k'].tolist()", "x[0] = {p}",
        "x.mul_(0.5)", "{u} = x.tolist()", "{u} = float(x.sum())", "{u} = 1.0 / float(STEPS + 1)",
        "{u} = own[int(own[0]) % 4]", "STEPS.copy_(STEPS * 2 % 7)", "STEPS.zero_()",
        "{u} = [float(r) for r in own]", "view = own[1:]\nview.add_(1)\n{u} = float(own[1])",
        "own.sub_(own.mean())", "{u} = bool(STORE[0] > 0)", "STORE.copy_(own)",
        "{u} = torch.arange(int(STEPS) % 4)", "{u} = own.max().item()", "STEPS.fill_({n})",
        "own.fill_({p})", "{u} = STORE.argmax().item()", "own.index_add_(0, PLACES % 4, STORE)",
    ),
    numbers=(
        "int(STEPS)", "float(STORE[0])", "STEPS.item()", "own.sum().item()", "int(own[0])",
        "float(z[0])", "float(PARAMETER[0])", "PLACES.tolist()[0]", "CACHE['n'].item()",
        "int(PLACES.max())", "float(x[0])",
    ),
    tests=(
        "STEPS > 2", "int(STEPS) % 2 == 0", "float(STORE[0]) > 0", "own.any()", "z[0] > 1",
        "PLACES.tolist()[0] > 2", "STEPS.item() < 5", "float(own[0]) == float(own[1])",
        "own.sum() > own[0]", "x.tolist()[0] > 0",
    ),
)  # fmt: skip

GENERATORS = Family(
    module="""\
def ramp(v, n):
    for k in range(n):
        yield v * k


def until(v, limit):
    rounds = 0
    while v.sum() < limit and rounds < 9:
        yield v
        v, rounds = v + 1.0, rounds + 1
    return 5


def talk():
    got = 0
    while True:
        got = (yield got + 1) or 0


def both(v, n):
    yield from ramp(v, n)
    try:
        yield v
    finally:
        LOG.append("closed")


def tree(v, depth):
    if depth > 0:
        yield from tree(v * 0.5, depth - 1)
    yield v


LOG = []
LASTING = talk()
next(LASTING)
""",
    start=(
        "g = talk()", "n9 = next(g)", "r = ramp(x, 3)",
    ),
    statements=(
        "{u} = sum(ramp({f}, {n} % 4))", "{u} = list(ramp({f}, 2))", "{u} = g.send({n})",
        "{u} = next(g)", "{u} = next(r, {f})",
        "for {u} in ramp({f}, 3):\n    {v} = {v} + {u}.mean()\n"
        "    if {f}.sum() > {c}:\n        break",
        "for {u} in until({f}, 4):\n    {v} = {v} + {u}.sum()",
        "{u} = sum({n} * k for k in range(3))", "{u} = [*both({f}, 1)]",
        "{u} = any(k.sum() > {c} for k in {f})",
        "for {u} in r:\n    {v} = {v} + {u}.sum()\n    break", "{u} = LASTING.send({k})",
        "{u} = [v.sum() for v in tree({f}, 2)]", "{u} = max(k.sum().item() for k in ramp({f}, 3))",
        "r = both({f}, 2)", "r.close()", "{u} = next(both({f}, {n} % 2))",
        "r = (k * {p} for k in [1, 2])", "{u} = list(r)", "{u} = dict(enumerate(ramp({f}, 2)))",
        "{u} = torch.stack(list(ramp({f}, 2)))", "{u} = list(map(lambda k: k * {n}, range(3)))",
        "{u}, *_ = both({f}, 1)", "{u} = sum(1 for k in until({f}, {c}))",
        "{u} = [k for k in (j * 2 for j in range({n} % 4))]",
    ),
    numbers=(
        "g.send(1)", "next(g)", "LASTING.send({n} % 3)", "sum(k for k in range(3) if k != {n})",
        "len(LOG)",
    ),
    tests=(
        "g.send({n}) > 2", "next(g) < 3", "next(r, None) is not None",
        "any(v.sum() > 0 for v in ramp({f}, 3))", "LOG",
    ),
)  # fmt: skip
