"""Families of constructs that compute with values: texts, numbers, containers, exceptions."""

from __future__ import annotations

from checks.fuzz.family import Family
from checks.fuzz.stateful_constructs import (
    COUNTERS,
    FOREIGN,
    GENERATORS,
    IDENTITY,
    ITERATORS,
    MODEL,
    RANDOM,
    READ_BACK,
)

TEXTS = Family(
    module="""\
NAMES = {"1": 2.0, "k2": 3.0, "-1": 4.0, "True": 0.5, "0": 9}
SAID = []
""",
    statements=(
        '{u} = f"n={{n}} {{p}:.2f}"', '{u} = "%d of %s" % ({n}, {n})', '{u} = str({n}) + "!"',
        "{u} = {s}.upper()", '{u} = "-".join([str({n}), "a", {s}])', "SAID.append(str({n}))",
        '{u} = "{:03d}|{}".format({n}, {p})', "{u} = f'{{n}:>4}' + {s}", "{u} = {s}.zfill(5)",
        "{u} = repr({p})", "{u} = str({n} > 1)", "{u} = f'{{n}!r:<5}{bool({n})}'",
        "{u} = {s}[::-1]", "{u} = {'a': str({n}), 'b': {s}}", "{u} = {s} if {s} < '1' else '?'",
        "{u} = {s} * 2", "{u} = ['a', 'b', {s}][{n} % 3]", "{u} = '%.3f %s' % ({p}, {s})",
        "{u} = str([{n}, {p}])",
    ),
    numbers=(
        "NAMES.get(str({n}), 7.0)", 'NAMES.get(f"k{{n}}", 1.0)', 'len(f"{{n}}")', "len(str({n}))",
        "int(str({n}))", 'float("%d" % {n})', 'len("%.2f" % {p})', "ord(str({n})[0])", "hash({n})",
        "len(repr({p}))", 'int("7" + str(abs({n})))', 'str({n}).count("1")', 'str({n}).find("2")',
        "len({s})", "int(f'{{n}:03d}')", "ord(chr(65 + {n} % 26))", "float(str({p}))",
        "int(bin({n} % 8)[2:])", "int(hex({n} % 8), 16)", "NAMES[str({n} % 2)]",
    ),
    tests=(
        'str({n}) == "1"', 'f"{{n}}".startswith("1")', '"k%d" % {n} == "k2"', "str({n}).isdigit()",
        '"1" in str({n})', "str({n}) in NAMES", 'f"{{b}.any()}" == "True"', 'str({n}) > "1"',
        '"{}".format({n}) != "0"', 'f"{{p}:.1f}" == "0.5"', "not {s}", "{s} == {s}",
        'str({p} > 0) == "True"', "{s}.endswith('1')", "SAID and SAID[-1] == str({n})",
    ),
)  # fmt: skip

FLOATS = Family(
    statements=(
        "{u} = {f}.sum().item()", "{u} = {i} * {p}", "{u} = {f} * {p}", "{u} = {i} + {n}",
        "{u} = torch.tensor({p})", "{u} = torch.full((2,), {p})", "{u} = {b} + {n}",
        "{u} = {i} / {n}", "{u} = torch.where({b}, {p}, {n})", "{u} = {f}.half() + {p}",
        "{u} = {f}.double() * {p}", "{u} = {p} + {f}.double()", "{u} = torch.tensor([{p}, {n}])",
        "{u} = {p} * 0.1 + {p}", "{u} = [{p}, {n}, {p} > {n}]", "{u} = divmod({n}, 3)",
        "{u} = divmod({p}, 0.3)", "{u} = {p} if {p} > 0.1 else {n}", "{u} = torch.clamp({f}, {p})",
        "{u} = {f} > {p}", "{u} = {i} == {p}", "{u} = {b} * {p}",
        "{u} = {f} ** {n}", "{u} = {n} - {i}", "{u} = torch.add({f}, {f}, alpha={p})",
        "{u} = complex({p}, 1)", "{u} = {f}.to(torch.bfloat16) * {p}", "{u} = ({p}).hex()",
        "{u} = ({p}).as_integer_ratio()", "{u} = math.modf({p})", "{u} = math.frexp({p})",
        "{u} = torch.linspace(0, {p}, 3)", "{u} = {f}.fill_({p})",
        "{u} = torch.arange(0, 2, abs({p}) + 0.5)", "{u} = {f}.new_tensor({p})",
        "{u} = torch.tensor({n}, dtype=torch.float16)",
    ),
    numbers=(
        "{p} * 0.1", "{p} + 1e-9", "{p} // 0.3", "{p} % 0.7", "divmod({p}, 0.3)[1]",
        "round({p}, 2)", "round({p})", "math.floor({p})", "math.sqrt(abs({p}))", "math.sin({p})",
        "math.atan2({p}, 2)", "{p} ** 2", "{p} / 3", "int({p} * 10)", "abs({p})", "min({p}, {n})",
        "max({n}, {p}, 1)", "{n} / 3", "{n} ** 2 % 100", "{n} // 3", "-{n} % 3", "{n} << 1 & 63",
        "{n} & 3", "~{n}", "{n} ^ 5", "True + {n}", "{n} * 1.0", "math.fsum([0.1, {p}, {p}])",
        "math.gcd({n}, 6)", "({n}).bit_length()", "math.exp(min({p}, 3))", "{p} - {n}", "{n} % -3",
        "{p} % -0.7", "math.copysign(1, {p})", "math.hypot({p}, {n})", "math.trunc({p})",
        "sum([0.1, {p}, {n}])", "math.log1p(abs({p}))", "int({n} > 1) + {n}", "(not {n}) + 1",
        "{n} and 3", "{p} or 2", "2 ** ({n} % 5)", "0.5 ** {n}", "math.fmod({p}, 0.3)",
        "pow({n}, 2, 7)", "{n} >> 1", "{n} | 4", "float({n}) / 7", "math.isqrt(abs({n}))",
        "math.pow({p}, 2)", "math.ceil({p})",
    ),
    tests=(
        "{p} == 0.1", "{p} + 1e-9 > {p}", "{p} == float({f}.sum())", "{p} == {f}.sum()",
        "math.isclose({p}, 0.5)", "({p}).is_integer()", "{p} * 3 == {p} + {p} + {p}", "{n} == {p}",
        "{p} != {p}", "0 < {p} < 1", "math.isnan({p})", "{p} > {f}.mean()", "{n} <= {p}",
        "bool({p})", "{n} in (1, 2.0)", "{p} * 0.1 == {p} / 10", "not {n} & 1", "math.isinf({p})",
    ),
)  # fmt: skip

GRADIENTS = Family(
    module="""\
BACKBONE = nn.Linear(3, 3)
FROZEN = nn.Linear(3, 3).requires_grad_(False)
SCALE = torch.ones(3, requires_grad=True)
""",
    start=(
        "rows3 = x.new_ones(2, 3)",
    ),
    statements=(
        "{u} = BACKBONE(rows3)", "{u} = FROZEN(rows3)",
        "with torch.no_grad():\n    {u} = BACKBONE(rows3)", "{u} = rows3 * SCALE",
        "{u} = {f}.detach()", "{u} = (lambda v: BACKBONE(v))(rows3)",
        "{u} = BACKBONE.forward(rows3)", "rows3 = FROZEN(rows3)",
        "with torch.inference_mode():\n    {u} = FROZEN(rows3)",
        "{u} = [p.mean() for p in FROZEN.parameters()]", "{u} = {f}.requires_grad",
        "{u} = torch.is_grad_enabled()", "with torch.enable_grad():\n    {u} = FROZEN(rows3)",
        "{u} = SCALE.sum().item()", "{u} = getattr(BACKBONE, 'weight').sum()",
        "{u} = rows3 * SCALE.detach()", "{u} = nn.Parameter(torch.ones(3)) * {p}",
        "{u} = torch.zeros(3, requires_grad=True)", "{u} = ({f} * 2).requires_grad_()",
        "{u} = torch.ones(3, requires_grad=True) * rows3",
    ),
    numbers=(
        "SCALE.sum().item()", "float({f}.detach().sum())",
    ),
    tests=(
        "torch.is_grad_enabled()", "{f}.requires_grad", "SCALE.sum() > 2",
        "BACKBONE.weight.sum() > 0",
    ),
)  # fmt: skip

NESTED = Family(
    module="""\
ROWS = [[1, 2], [3]]
GROUPS = {}
""",
    start=(
        "ll, grid = [[], []], [[0] * 2 for _ in range(2)]", "tt = [[x], [x * 2, x]]",
    ),
    statements=(
        "ll[0].append({f}.sum())", "ll[{n} % 2].append({n})", "ll.append([{n}])",
        "{u} = [len(k) for k in ll]", "ll[-1] = ll[0] + [{n}]", "{u} = [k[:] for k in ll]",
        "grid[{n} % 2][0] = {n}", "grid[0][{n} % 2] += 1", "grid[1] = grid[0]",
        "{u} = sum(map(sum, grid))", "del ll[0][:]", "ROWS[0].append({n})",
        "ROWS.append([{n}, {k}])", "ROWS[-1] = ROWS[-1][-2:]", "tt[0].append({f})",
        "tt[{n} % 2].append({f})", "GROUPS.setdefault({n} % 3, []).append({n})",
        "GROUPS.setdefault('a', []).append({f})", "{u} = tt[-1][0]", "{u} = len(tt[{n} % 2])",
        "tt = [k[::-1] for k in tt]", "{u} = [v.sum() for k in tt for v in k]",
        "for {u} in grid:\n    {u}[0] = {n}", "ll = sorted(ll, key=len)",
        "{u} = [k.pop() for k in tt if len(k) > 1]", "tt[0], tt[1] = tt[1], tt[0]",
        "{u} = list(zip(*grid))", "{u} = grid[{n} % 2][:]", "ll[0] += [{k}]",
        "ll.insert(0, [{n}] * 2)", "{u} = [[{n}] * 2 for _ in range(2)]",
        "{u} = grid == [[0, 0], [0, 0]]", "{u} = {f} + tt[1][-1]", "grid[0].extend([{n}])",
        "{u} = [0, 1, 2, 3][{n} % 4 :]", "{u} = [x, x * 2, x * 3][: {n} % 3]",
        "{u} = {k: [] for k in range(2)}", "ll[0].sort()",
    ),
    numbers=(
        "len(ll[0])", "len(ll)", "grid[0][0]", "sum(grid[1])", "len(ROWS)", "ROWS[0][-1]",
        "len(tt[0])", "len(GROUPS)", "grid[{n} % 2][0]",
    ),
    tests=(
        "ll[0]", "not ll[-1]", "len(ll[0]) > 1", "grid[0][0] > 0", "grid[0] is grid[1]",
        "{n} in grid[0]", "[{n}] in ll", "len(tt[0]) < 3",
    ),
)  # fmt: skip

DECIDED = Family(
    statements=(
        "{u} = {f}[{f} > 0]", "for {u} in {f}[{f} > 0]:\n    {v} = {v} + {u}.sum()",
        "{u} = {f}.nonzero()", "{u} = {i}.unique()", "{u} = len({f}[{f} > {c}])",
        "{u} = torch.arange(int({b}.sum()))", "{u} = {f}[{b}]",
        "for {u} in {f}.nonzero().flatten().tolist():\n    {v} = {v} + {u}",
        "{u} = {f}[{f} > 0].tolist()",
        "for {u} in range(int({b}.sum())):\n    {v} = {v} * 0.5 + {u}", "{u} = {f}[{f} > 0].sum()",
        "{u} = torch.masked_select({f}, {f} > {c})", "{u} = {i}.unique().shape[0]",
        "{u} = [{f}[{f} > {c}] for _ in range(2)]",
        "{u} = torch.cat([{f}[{f} > 0], {f}[{f} <= 0]])", "{u} = torch.zeros(int({b}.sum()))",
        "{u} = {f}[: int({b}.sum())]", "while len({v}) > 1:\n    {v} = {v}[{v} > {v}.mean()]",
        "{u} = {f}[{f} > 0].mean()", "{u} = torch.where({b})[0]", "{u} = {f}[{f} > 0][:2]",
        "{u} = x[x > {c}]\n{v} = {u} * 2", "{u} = torch.bincount({i}.abs())",
        "{u} = {f}.repeat_interleave({i}.abs() % 3)", "{u} = list({f}[{f} > 0])",
        "{u} = {i}.unique(return_counts=True)[1]",
    ),
    numbers=(
        "len({f}[{f} > 0])", "int({b}.sum())", "{f}.nonzero().shape[0]", "{i}.unique().numel()",
        "{f}[{f} > {c}].numel()",
    ),
    tests=(
        "len({f}[{f} > 0]) > 1", "{f}[{f} > 0].numel()", "{i}.unique().shape[0] > 2",
        "{f}[{f} > 0].sum() > 1", "({f} > 0).nonzero().numel() == 0",
    ),
)  # fmt: skip

SORTED = Family(
    start=(
        "vals = [float(k) for k in x.reshape(-1)[:4]]",
    ),
    statements=(
        "{u} = sorted(vals)", "{u} = sorted(vals, reverse=True)", "{u} = min(vals)",
        "{u} = max(vals, key=abs)", "vals.sort()", "vals.sort(key=lambda k: -k)",
        "{u} = vals.index(min(vals))", "{u} = vals.count({p})",
        "{u} = sorted(range(len(vals)), key=lambda k: vals[k])",
        "{u} = sorted(zip(vals, range(4)))", "{u} = heapq.nlargest(2, vals)",
        "{u} = bisect.bisect([0.1, 0.5], {p})", "vals.append({p})", "vals.reverse()",
        "vals = vals[::-1]", "{u} = sum(vals)", "vals = [k for k in vals if k > {c}]",
        "{u} = max(vals, default=0)", "{u} = sorted({f}, key=lambda k: k.sum())", "{u} = max({f})",
        "{u} = sorted({f})[0]", "{u} = vals + [{p}]", "vals[0] = {p}",
        "{u} = vals.pop() if len(vals) > 1 else 0.0", "{u} = set(vals)", "vals.insert(0, {p})",
        "{u} = min({n}, {p}, 2)", "{u} = sorted([{n}, {k}, 2], key=lambda k: k % 3)",
        "{u} = max([{n}, 2], [1, {n}])", "{u} = tuple(vals)",
        "{u} = min((k, i) for i, k in enumerate(vals))",
        "{u} = min(range(3), key=lambda k: abs(k - {p}))", "vals.remove(vals[0])",
        "{u} = dict(zip(vals, 'abcd'))", "{u} = sorted({s})", "bisect.insort(vals, {p})",
    ),
    numbers=(
        "vals[0]", "min(vals)", "max(vals)", "len(vals)", "sum(vals)", "vals.index(max(vals))",
        "sorted(vals)[0]", "max({n}, {n})", "min(vals, key=abs)",
    ),
    tests=(
        "{p} in vals", "vals == sorted(vals)", "any(k != k for k in vals)", "vals[0] < vals[-1]",
        "max(vals) > 1", "all(k > 0 for k in vals)", "vals > [0.5]", "1.0 in vals",
    ),
)  # fmt: skip

EFFECTS = Family(
    module="""\
SEEN = []


def say(v):
    print("say", v)
    return v
""",
    statements=(
        'print("a", {n})', 'print(f"{{n}}")', 'warnings.warn("low")', 'warnings.warn(f"{{n}}")',
        "print({f}.shape)", "print(end='.')", "{u} = say({n})", "{u} = say({k})",
        "SEEN.append({n})", "SEEN.append('x')", "print(len(SEEN))", "print({p} > 0)",
        "sys.stdout.write('w')", "print('a', 'b', sep='-')", "print(1) or SEEN.append(1)",
        "[print(k) for k in range(2)]", "print({s})", "print({i})", "SEEN.clear()", "print(SEEN)",
        "print({n}, {p})", "print([{n}])", "print(None)", "print(*[1, {n}])",
    ),
    numbers=(
        "say({n})", "say(1)", "len(SEEN)",
    ),
    tests=(
        "say({n}) > 1", "say(True)", "SEEN", "print('t') is None", "say({f}.sum()) > 0",
    ),
)  # fmt: skip

ERRORS = Family(
    module="""\
class Stop(Exception):
    def __init__(self, value):
        super().__init__(f"stop {value}")
        self.value = value


def guard(n):
    if n > 2:
        raise Stop(n)
    return n


EVENTS = []
""",
    statements=(
        "try:\n    {u} = guard({n})\nexcept Stop as e:\n    {u} = e.value",
        "try:\n    {u} = [1, 2][{n}]\nexcept IndexError:\n    {u} = 0",
        "assert {n} < 100, f'bad {{n}}'",
        "try:\n    {u} = {'a': 1}[{s}]\nexcept KeyError:\n    {u} = 5",
        "if {n} > 40:\n    raise ValueError(f'large {{n}}')",
        "with contextlib.suppress(Stop):\n    guard({n})",
        "try:\n    {u} = 6 // {n}\nexcept ZeroDivisionError:\n    {u} = -1",
        "try:\n    {v} = {v} * guard({n})\nfinally:\n    EVENTS.append(1)",
        "{u} = int({s}) if {s}.isdigit() else 0",
        "try:\n    if {f}.sum() > {c}:\n        raise Stop({n})\n"
        "    {u} = 1\nexcept Stop as e:\n    {u} = str(e)",
        "try:\n    {u} = next(iter([]))\nexcept StopIteration:\n    {u} = {n}",
        "try:\n    {u} = int('x')\nexcept ValueError as e:\n    {u} = str(e)",
        "try:\n    {u} = x.nothing\nexcept AttributeError:\n    {u} = {k}",
        "{u} = {n} // ({n} + 50)",
        "for {u} in range(4):\n    try:\n        if {u} == {n}:\n"
        "            break\n    finally:\n        EVENTS.append(2)",
        "if {n} > 60:\n    raise Stop({n})",
        "for {u} in range(3):\n    if {u} == {n}:\n        break\nelse:\n    {v} = {v} + 1",
        "match {n}:\n    case 0:\n        {u} = 1\n"
        "    case 1 | 2:\n        {u} = 2\n    case _:\n        {u} = 3",
        "match ({n}, {k}):\n    case (a, 1):\n        {u} = a\n"
        "    case (1, b) if b > 0:\n        {u} = b\n    case _:\n        {u} = 0",
        "{u} = (q := {n}) + q",
    ),
    numbers=(
        "guard(min({n}, 2))", "len(EVENTS)", "[1, 2, 3][{n} % 3]", "[1, 2, 3][-1 - {n} % 2]",
    ),
    tests=(
        "guard(min({n}, 2)) > 1", "EVENTS", "(q := {n}) > 1 and q < 5", "{n} == {k}",
    ),
)  # fmt: skip

CONTAINERS = Family(
    module="""\
BOX = {}
ITEMS = [1, 2, 3]
BAG = {1, 2}
""",
    start=(
        "d, items, bag = {'a': 1, 'b': x}, [3, 1, 2], {1, 5}",
    ),
    statements=(
        "d['a'] = {n}", "d[{n}] = {k}", "d['b'] = {f}", "{u} = d.get({n}, 0)", "{u} = list(d)",
        "{u} = d.pop('b', None)", "d.update(a={n}, c=2)", "{u} = {**d, 'z': {n}}",
        "{u} = d | {'q': {n}}", "BOX[{n}] = {n}", "BOX['h'] = {f}", "{u} = BOX.get('h')",
        "ITEMS.append({n})", "ITEMS[{n} % 3] = {n}", "{u} = ITEMS[-2:]", "ITEMS[:] = ITEMS[-3:]",
        "items.append({n})", "items[{n} % 3] += 1", "{u} = items[{n} % 3]",
        "{u} = items[:{n} % 3]", "items[1:2] = [{n}, {k}]", "del items[0]",
        "{u} = items.pop() if items else 0", "items += [{n}]", "items *= 2", "{u} = items[::-1]",
        "{u} = tuple(items)", "bag.add({n})", "{u} = {n} in bag", "BAG.add({n})",
        "{u} = len(bag | {9, 8})", "bag.discard({n})", "{u} = sorted(bag)",
        "{u} = {k: v for k, v in zip('ab', items)}", "{u} = [k for k in items if k > {n}]",
        "{u} = {k: {n} for k in items}", "{u}, *rest = items", "{u} = [*items, {n}]",
        "{u} = dict(a={n}) == d", "{u} = items == [3, 1, {n}]", "{u} = items < [3, {n}]",
        "{u} = slice({n} % 3, None)", "{u} = range(5)[{n} % 5]", "{u} = range({n} % 4)",
        "{u} = list(range(0, {n} % 6, 2))", "{u} = collections.namedtuple('P', 'a b')({n}, {f})",
        "{u} = items.index(max(items))", "{u} = d.setdefault('k', {n})", "{u} = not items",
        "items.extend(range({n} % 3))", "{u} = [*d]", "{u} = d == {'a': 1}", "{u} = [k for k in d]",
        "{u} = [d, 1] == [{'a': {n}}, 1]", "{u} = not d", "del d['b']",
    ),
    numbers=(
        "d['a']", "len(d)", "len(items)", "sum(ITEMS)", "len(BOX)", "len(bag)",
        "items[0] if items else 0", "sum(d.get(k, 1) for k in (1, 2))", "ITEMS[{n} % 3]",
        "len(range(1, {n} % 7))",
    ),
    tests=(
        "{n} in d", "items", "{n} in items", "d['a'] > 1", "len(BOX) > 2", "{n} in BAG",
        "1 in range({n} % 4)", "items[-1] == {n}", "'h' in BOX", "d.get('c') is None",
        "{n} not in {1, 2}",
    ),
)  # fmt: skip

SIZES = Family(
    start=("m1, m2 = x.shape[-1], len(x) - 2",),
    statements=(
        "{u} = (m1 > 3) + {n}", "{u} = [m1 > 3, m2 == 1, not m2, bool(m2)]", "{u} = m1 > {n}",
        "{u} = (m1 > 3) is True", "{u} = type(m1 > 3)", "{u} = {True: 1, False: 2}[m1 > 3]",
        "{u} = m1 * 1.5 % 2", "{u} = m1 / 2 - m1 / 2", "{u} = divmod(m1, m2)",
        "{u} = m1 % (m2 - 3)", "{u} = {n} / (m2 - 3)", "{u} = m1 // (m1 - 5)",
        "{u} = {p} % (m1 / 2)", "{u} = round(m1 / 2)", "{u} = math.sqrt(4 - m1)",
        "{u} = math.floor(m1 * 0.7)", "{u} = range(m2 - 3)", "{u} = max(m1, {n})",
        "{u} = min(m1, 3.5)", "{u} = str(m1 > 3)", "{u} = m1 ** m2", "{u} = 2.5 ** m2",
        "{u} = m1 == True", "{u} = [m2, m1] == [True, 3]", "{u} = m2 in (True,)",
        "{u} = {'k': m1} == {'k': {n}}", "{u} = m1 * {p}", "{u} = m2 << 1",
        "{u} = (m1 > 3) & (m2 > 1)", "{u} = ~m2", "{u} = -m1 // 2", "{u} = {f} * (m1 - 2)",
        "{u} = {f} / m1", "{u} = {v}[: m1 // 2]", "{u} = {f} if m1 > 3 else -{f}",
        "{u} = (m1 > 3) and {n}", "{u} = m2 or {p}", "{u} = 1 < m1 < {n}",
        "{u} = [k for k in range(m1)]", "m1 += 1", "m2 = m1 - m2", "m1 = m1 * 1.0",
        "m2 = m1 > 3", "{u} = m1.bit_length()", "{u} = float(m1)", "{u} = int(m2)",
        "{u} = np.array(m1)", "{u} = torch.tensor(m1 > 3)", "{u} = isinstance(m2, int)",
        "{u} = f'{m1} {m2 > 1}'", "{u} = sum([m1, m2, {n}])", "{u} = sorted([m1, {n}, m2])",
        "def inner(k=m1):\n    return k > 3\n{u} = inner()",
    ),
    numbers=(
        "m1 - 3", "m2 * 2", "m1 // 2", "m2 - m1", "m1 % 3", "int(m1 > 3)", "x.shape[-1] * {n}",
    ),
    tests=(
        "m1 > 3", "m2 == True", "(m1 > 3) is True", "bool(m2)", "not m2", "m1 in (3, True)",
        "m1 > {n}", "m2 != {n}", "isinstance(m1 > 3, bool)", "m1 % 2 == 1 and {n}", "m1 / 2 > 1.5",
        "m1 is None", "{n} < m2 or m1 > 3",
    ),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "texts": TEXTS, "floats": FLOATS, "nested": NESTED, "decided": DECIDED, "sorted": SORTED,
    "effects": EFFECTS, "errors": ERRORS, "containers": CONTAINERS, "identity": IDENTITY,
    "model": MODEL, "counters": COUNTERS, "foreign": FOREIGN, "iterators": ITERATORS,
    "random": RANDOM, "read back": READ_BACK, "generators": GENERATORS, "gradients": GRADIENTS,
    "sizes": SIZES,
}  # fmt: skip

IMPORTS = """\
import array, bisect, collections, contextlib, dataclasses, functools, heapq, io, itertools, math
import random, sys, types, warnings

import numpy as np
"""
