"""The statements of random programs, and what programs of each kind are made of.

Slots besides those of `templates.py` and `family.py`: `{test}` a condition, `{plain}` one without
`or`, `{T}` a variable with a tensor, `{a}` state that may be assigned, `{like}` an expression of
the type of `{T}`, `{v}` or `{a}`, `{same}` a variable of the type of `{v}`, `{A}` a variable with a
list of tensors, `{P}` one of two or more, `{item}` an expression of the type of its items, `{j}` a
variable with an int, `{h}` a condition with a name, `{view}` a view, `{number}` any number,
`{call}` a call of a helper, `{g}` a function of the program, `{U}`, `{R}`, `{Q}`, `{K}` new names.
`{block}` stands for further statements, `{again}` for the first ones of the arm before, `{result}`
for what is returned.
In programs for one instance: `{y}` an object, `{M}` what may be None, `{H}` a vector of three,
`{z}` a variable with one, `{V}` a list of these, `{I}` one of ints, `{L}` any list, `{q}` a bool,
`{each}` and `{table}` a comprehension, `{any}` anything, `{:Class.field}` what the field of the
class may hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from checks.fuzz import templates as t

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """The parts that programs of one kind are made of.

    expressions: groups of templates that are as likely as each other. statements: groups with
    weights, the simplest first. plain: numbers at the leaves. computed: how many of 100 numbers are
    drawn from `numbers`, even where there are variables. parts: fields of objects are read, too.
    lenient: what raises for some of the samples may be written.
    """

    expressions: tuple[Group, ...]
    statements: dict[str, tuple[int, Group]]
    tests: tuple[Group, ...] = (t.TESTS,)
    numbers: Group = t.NUMBERS
    plain: Group = ("{k}",)
    computed: float = 0.3
    ints: Group = t.INTS
    floats: Group = ("0.1", "0.5", "{f}.sum().item()", "float({f}.reshape(-1)[0])")
    constants: Group = ()
    parts: bool = False
    lenient: bool = False
    most_lines: int = 45
    most_depth: int = 3
    most_elements: int = 400
    most_number: int = 10**6
    most_text: int = 300
    most_trips: int = 12
    samples: dict[str, tuple[str, frozenset[str]]] = field(
        default_factory=dict[str, tuple[str, frozenset[str]]]
    )
    """By class and field: a plain expression, and the signatures of what it may hold."""


ASSIGN = ("{T} = {like}",)
CHANGE = ("{v} = {v} * 0.5", "{v} = torch.tanh({v})", "{v} = {v} - {v}.mean()", "{v} += {c}")
NUMBER = ("{j} = {j} + {m}", "{j} = {n}", "{j} = {n}", "{U} = {number}", "{U} = {number}")
LISTS = (
    *["{U} = [{v}]", "{U} = [{v}, {like}]"] * 6, *["{A}.append({item})"] * 3, "{A}[0] = {item}",
    "{A}[-1] = {item}", "{A}[0] = {A}[-1]", "{A}[-1].mul_(0.5)", "{P}.pop()",
    "{P}[0], {P}[1] = {P}[1], {P}[0]", "{A} = [torch.tanh(item) for item in {A}]",
    "{A} = {A} + [{A}[0]]", "{A}.insert(0, {A}[-1])", "{A}.extend([{A}[0] * 2])", "{A} = {A}[::-1]",
    "{A}.reverse()",
)  # fmt: skip
IF = "if {test}:\n    {block}"
ELSE = "\nelse:\n    {block}"
BRANCHES = (
    IF, IF, IF + ELSE, IF + "\nelse:\n    {again}\n    {block}", "if {test}:\n    pass" + ELSE,
    IF + "\nelif {test}:\n    {block}", IF + "\nelif {test}:\n    {block}" + ELSE,
    "{U} = {test}\nif {U}:\n    {block}", "{U} = {test}\nif {U}:\n    {block}" + ELSE,
    "{U} = {test}\nif not {U}:\n    {block}", "{U} = {test}\nif {U}:\n    {block}" + ELSE,
    "if {h}:\n    {block}", "if {h}:\n    {block}", "if not {h}:\n    {block}" + ELSE,
)  # fmt: skip
"""A condition may have a name, and be that of other branches, too; both arms may begin alike."""


def loops(*heads: str) -> Group:
    return tuple(f"for {head}:\n    {{block}}" for head in heads)


RANGES = loops(
    "{K} in range(3)", "{K} in range(2)", "{K} in range(4)", "{K} in range(0)", "{K} in range(1)",
    "{K} in range(1, 4)", "{K} in range(3, 0, -1)", "{K} in range(0, 6, 2)", "{K} in range(10)",
    "{K} in range({n} % 4)", "{K} in range(int({f}.abs().sum().clamp(0, 5)))",
    "{K} in range(len({l}))", "{K} in range(int({i}.abs().sum()) % 5)",
    "{K} in range({t}.shape[0])",
)  # fmt: skip
EACH = loops(
    "{R} in {T}", "{R} in {T}", "{R} in {w}", "{R} in {T}[1:]", "{K}, {R} in enumerate({t})",
    "{R} in {T}.unbind(0)[::-1]", "{R}, {Q} in zip({T}, {T})", "{R} in list({l})", "{R} in {l}[1:]",
    "{K}, {R} in enumerate(list({l}))", "{R} in reversed(list({l}))", "{R} in reversed({T})",
    "{K}, {R} in enumerate({T})", "{R}, {Q} in zip(list({l}), list({l}))",
)  # fmt: skip
WHILES = (
    "{K} = 0\nwhile {K} < {m}:\n    {K} += 1\n    {block}",
    "{K} = 0\nwhile {K} < {m} and {plain}:\n    {K} += 1\n    {block}",
    "{K} = 0\nwhile {plain} and {K} < {m}:\n    {K} += 1\n    {block}",
    "{K} = 0\nwhile True:\n    {K} += 1\n    if {K} > {m} or {plain}:\n        break\n    {block}",
)  # fmt: skip
JUMPS = ("if {plain}:\n    break", "if {plain}:\n    continue")
RETURNS = ("if {plain}:\n    return {result}",)
STATEMENTS: dict[str, tuple[int, Group]] = {
    "assign": (5, ASSIGN),
    "change": (3, CHANGE),
    "fresh": (3, ("{U} = {e}",)),
    "view": (2, ("{U} = {view}",)),
    "in place": (2, t.IN_PLACE),
    "number": (1, NUMBER),
    "list": (2, LISTS),
    "swap": (1, ("{v}, {same} = {same}, {v}",)),
    "branch": (6, BRANCHES),
    "range": (3, RANGES),
    "each": (1, EACH),
    "while": (2, WHILES),
    "jump": (2, JUMPS),
    "return": (1, RETURNS),
}
ON_TENSORS = (t.POINTWISE, t.POINTWISE, t.REDUCTIONS, t.MOVES, t.PRODUCTS)
FUNCTIONS = Grammar(ON_TENSORS, STATEMENTS)

# ---- sizes ---------------------------------------------------------------------------------------
SIZED_LISTS = (
    "{U} = [{f}, {f}]", "{U} = list({t}.split(2))", "{U} = list({f}.chunk(3))", "{U} = [{f}]",
    "{U} = list({f})", "{U} = [r * 2 for r in {f}]", "{U} = list({f}.unbind(0))",
    "{U} = [{f} for _ in range({n})]", "{A}.append({f})", "{A}.append({f})", "{A}[-1] = {f}",
    "{A} = {A}[::-1]", "{A} = {A}[1:] + {A}[:1]", "{A} = [v * 0.5 for v in {A}]",
    "{A}.insert(0, {f})", "{A}.extend({f}.split(2))", "{A}[0] = {A}[-1] * 2",
)  # fmt: skip
GROWN = (
    "{v} = torch.cat([{v}, {v}[-1:] * 0.5])", "{v} = torch.cat([{v}, {f}])",
    "{v} = torch.cat([{v}, {f}[None]])", "{v} = torch.cat([{f}, {v}], -1)",
)  # fmt: skip
SIZED_ASSIGN = (
    "{v} = torch.tanh({v} + {f})", "{v} = {v} * 0.5 + {f}", "{v} = {v} - {f}.mean()",
    "{v} = {v} * {f}.sigmoid()",
)  # fmt: skip
SIZED_LOOPS = loops(
    "{K} in range({n})", "{K} in range({n})", "{K} in range({n}, 0, -1)", "{K} in range(0, {n}, 2)",
    "{K} in range(1, {n})", "{K} in reversed(range({n}))", "{R} in {t}", "{R} in {t}", "{R} in {f}",
    "{K}, {R} in enumerate({t})", "{R}, {Q} in zip({t}, {f})", "{R} in reversed({f})",
    "{R} in {t}.split(2)", "{R} in {t}.split({n})", "{R} in {f}.chunk(3)", "{R} in {f}.unbind(0)",
    "{R} in {f}.unbind(-1)", "{R} in {f}.tensor_split(2)", "{R} in list({l})", "{R} in {f}[1:]",
    "{K}, {R} in zip(range({n}), {f})", "{R} in {f}.chunk({n})", "{K}, {R} in enumerate(list({l}))",
    "{R}, {Q} in zip({f}[:-1], {f}[1:])",
)  # fmt: skip
SHRINKING = (
    "while len({v}) > 1:\n    {block}\n    {v} = {v}[1:]",
    "while {v}.shape[0] > 2:\n    {block}\n    {v} = {v}[: {v}.shape[0] // 2]",
    "while {v}.shape[0] > 1:\n    {block}\n    {v} = {v}[::2] * 0.5",
)  # fmt: skip
SIZES = Grammar(
    (*ON_TENSORS, *[t.SIZED] * 5),
    {
        "assign": (4, SIZED_ASSIGN),
        "fresh": (4, ("{U} = {f}", "{U} = {f}", "{U} = {e}")),
        "in place": (2, (*t.SIZED_IN_PLACE, *t.SIZED_IN_PLACE, *t.IN_PLACE)),
        "number": (1, ("{U} = {n}",)),
        "list": (2, SIZED_LISTS),
        "grow": (1, GROWN),
        "branch": (3, (IF, IF + ELSE)),
        "each": (4, SIZED_LOOPS),
        "shrinking": (1, SHRINKING),
        "jump": (1, JUMPS),
    },
    tests=(t.SIZED_TESTS, t.TESTS),
    numbers=t.SIZED_NUMBERS,
    plain=t.PLAIN_SIZES,
    computed=0.5,
    ints=("1", "2", "2", "3", "0", "5"),
    most_lines=16,
    most_depth=2,
    most_elements=3000,
    most_number=200,
    most_text=160,
    most_trips=24,
)
RECURSIVE = (
    "if x.shape[0] <= 1:\n    return {one}\nh = x.shape[0] // 2\n"
    "return torch.cat([r(x[:h]), r(x[h:])])",
    "if len(x) == 0:\n    return torch.zeros(4)\nreturn x[0] + {row} * r(x[1:])",
    "if x.shape[0] < 2:\n    return {one}\ny = r(x[::2])\n"
    "return torch.cat([y, y])[:x.shape[0]] + x",
    "if n <= 0 or x.sum() > 40:\n    return x\nreturn r({one}, n - 1)",
)
"""Bodies of a function of a tensor with rows of four; `{one}`: of its shape, `{row}`: a row."""

# ---- one instance --------------------------------------------------------------------------------
VECTORS = (
    "torch.tanh({H})", "torch.sigmoid({H})", "torch.relu({H})", "torch.abs({H})", "torch.neg({H})",
    "torch.cos({H})", "({H} + {H})", "({H} - {H})", "({H} * {H})", "({H} + {n})", "({H} * {p})",
    "({p} - {H})", "torch.where({H} > 0, {H}, {H})", "torch.maximum({H}, {H})", "{H}.clamp(-2, 3)",
    "({H} @ W33)", "(C_float32_4 @ W43)", "torch.tanh(L33({H}))", "torch.tanh(L13({H}[1:2]))",
    "torch.tanh(L43(C_float32_4))", "torch.tanh(L34({H}))[1:]", "torch.softmax({H}, -1)",
    "WORDS({i} % 5)", "WORDS({i}.sum() % 5)", "WORDS.weight[{n} % 5]", "sum({V}, torch.zeros(3))",
    "torch.stack([{H}, *{V}]).sum(0)", "torch.stack([{H}, *{V}]).mean(0)",
    "torch.stack([{H}, *{V}]).max(0).values", "torch.stack([{H}, {H}])[{n} % 2]",
    "torch.stack([{f}, {f}, {f}])", "torch.softmax({f}, 0)", "torch.cat([{f}, {f}])[2:]",
    "({H} if {test} else {H})", "{H}.unsqueeze(0)[0]", "{H}.clone()", "{H}.flip(0)",
    "({f}).to(torch.float32)", "{f}.sum(0)", "{f}.sum(-1)", "{f}[{n} % 3]", "{f}.max(0).values",
    "torch.zeros(3)", "torch.ones(3)", "({f} @ W33)", "torch.tanh(L33({f}))",
    "torch.tanh(L31({f}))", "({f} @ W34)", "{g}({H})", "{g}({n})", "{V}[{n}]", "{V}[{n}]", "{V}[0]",
    "{f}[{n}]", "torch.cat([{f}, {H}])[1:]", "torch.cat([{H}[:1], {f}])[:3]",
)  # fmt: skip
TENSORS = (
    "torch.stack([{t}, {t}])", "torch.stack([{t}, *{V}])", "{t}.to(torch.float64)",
    "{t}.to(torch.float16)", "({t} + {t})", "({t} * {n})", "({f} * {p})", "({t} > {n})",
    "({t} == {t})", "({b} & {b})", "({b} | {b})", "({b} ^ {b})", "(~{b})",
    "torch.where({b}, {t}, {t})", "torch.maximum({t}, {t})", "{t}.clamp(-2, 3)", "torch.tanh({f})",
    "torch.cos({f})", "{t}.t()", "torch.tanh(L41(C_float32_4))", "{t}.reshape({t}.shape[::-1])",
    "{t}.flip(0)", "{t}[1:]", "{t}.sum(0)", "{t}.sum(-1)", "{t}.max(0).values", "({f} * {f}).sum()",
    "{f}.mean()", "{t}[{n} % 2]", "{t}.clone()", "{t}.unsqueeze(0)[0]", "torch.ones(2, 3)",
    "{t}.to(torch.int32)", "{t}.to(torch.bool)",
)  # fmt: skip
OBJECTS = (
    "{each}", "{each}", "{each}", "[{H}, {H}]", "[{n}, {n}, {n}]", "[{y}]", "[{H}]", "({L} + {L})",
    "({V} + [{H}])", *["{L}[1:]", "{L}[:2]", "{L}[::-1]"] * 3, "({n}, {t})",
    *["list(reversed({L}))", "list(reversed([{H}, {H}]))", "{L}[0]", "{L}[{n}]"] * 5,
    "({H}, {n}, {p})", "({y}, )", "{table}", "{table}", "{table}", "{1: {n}}", "[{I}, {I}]",
    "({n} if {test} else {n})", "({s} if {test} else {s})", "(None if {test} else {y})",
    "({y} if {test} else {y})", "({test}, {s})", "[{t}]", "[]", "{s}", "{q}", "{p}", "{n}",
)  # fmt: skip
INSTANCE_NUMBERS = (
    "({n} + {n})", "({n} - {n})", "(({n} * {n}) % 13)", "({n} // {n})", "len({L})", "min({n}, {n})",
    "max({n}, {n})", "int({t}.sum())", "int({t}.numel())", "int({t}.dim())", "{H}.argmax().item()",
    "({i}.sum().item() % 7)", "sum({I})", *["{I}[{n}]", "({n} // {n})"] * 4, "{I}[-1]",
    "({n} % {n})", "{f}.shape[0]", "len([e for e in {L} if {test}])", "({n} if {test} else {n})",
    "{g}({n})", "len({each})",
)  # fmt: skip
INSTANCE_FLOATS = (
    "0.5", "-1.25", "({n} / 2)", "({p} + {p})", "({p} - {p})", "({p} * {p})", "float({f}.sum())",
    "{f}.sum().item()", "max({p}, 0.5)", "abs({p})",
)  # fmt: skip
INSTANCE_TESTS = (
    "({n} < {n})", "({n} <= {n})", "({n} > {n})", "({n} >= {n})", "({n} == {n})", "({n} != {n})",
    "({p} < {p})", "({p} >= {p})", "({q} and {q})", "({q} or {q})", "(not {q})",
    "(not ({n} > {k}))", "(not {q})", "{s} in ('a', 'bc')", "({s} == {s})", "{s} in ('a', 'bc')",
    "bool({t}.sum() > {n})", "bool({t}.sum() > {n})",
    "bool(({H} > 0.125).all())", "bool(({H} > 0.125).all())", "({M} is None)", "({M} is not None)",
    "({M} is None)", "{q}", "{q}", "{q}", "{n} > {k}", "(({n} > {k}) if {q} else {q})",
    "({q} if ({n} < {n}) else {q})", "({q} if ({s} == {s}) else ({n} < {k}))",
)  # fmt: skip
APPENDED = "    {U}.append({H})"
STACK = """\
{U} = [%s]
{K} = 0
while {U} and {K} < 5:
    {K} += 1
    {R} = {U}.pop()
    if {test}:
        {U}.append(%s)
    {block}"""
STATE = "{U} = {H}\nfor %s:\n    {block}\n    {U} = torch.tanh(L33({U}) + {H})"
INSTANCE_EACH = tuple(
    STATE % head
    for head in (
        *("{K} in range({n} % 4)", "{R} in {L}[:3]", "{R} in reversed({L}[:3])", "{R} in {L}[:3]"),
        *("{K}, {R} in enumerate({L}[:3])", "{R}, {Q} in zip({L}[:3], {L}[:3])", "{R} in {f}"),
        *("{R} in ({L} + {L})[:3]", "{R} in {L}[1:]", "{R} in torch.stack([{H}, {H}])"),
        *("{R} in ({f} if {test} else {f})", "{R} in ({f} + {n})"),
    )
)
INSTANCES = Grammar(
    (VECTORS, TENSORS, OBJECTS, OBJECTS, t.POINTWISE, t.REDUCTIONS, t.MOVES),
    {
        "fresh": (
            6,
            (
                *("{U} = {H}", "{U} = {H}", "{U} = {n}", "{U} = {y}", "{U} = {V}", "{U} = {p}"),
                *("{U} = {s}", "{U} = {e}", "{U} = {any}", "{U} = {any}", "{U} = {any}"),
                *("{U} = {M}", "{U} = {each}", "{U} = {test}", "{U} = [{y}]", "{U} = {any}"),
            ),
        ),
        "append": (
            2,
            (
                "{U} = [{H}]\nfor _ in range({n} % 4):\n" + APPENDED,
                "{U} = [{H}]\nif {test}:\n" + APPENDED,
                "{U} = [{H}]\nfor _ in range(2):\n" + APPENDED + "\n{U}.reverse()",
                "{U} = [{y}]\nif {test}:\n    {U}.append({y})",
                "{U} = [{n}]\nfor _ in range({n} % 4):\n    {U}.append({n})\n{U}.reverse()",
            ),
        ),
        "update": (
            3,
            ("{v} = {like}", "{z} = torch.tanh({z} + {H})", "{j} = ({j} + {n}) % 11"),
        ),
        "branch": (
            3,
            (
                *(IF, IF + ELSE, IF + ELSE, IF + "\nelif {test}:\n    {block}" + ELSE),
                *("if {q}:\n    {block}", "if {q}:\n    {block}" + ELSE),
            ),
        ),
        "loop": (3, (*INSTANCE_EACH, *[one + ELSE for one in INSTANCE_EACH[:3]])),
        "while": (
            1,
            (
                "{U} = {H}\n{K} = 0\nwhile {U}.abs().sum() > 0.75 and {K} < 4:\n    {K} += 1\n"
                "    {block}\n    {U} = {U} * 0.5 + {H} * 0.125",
            ),
        ),
        "stack": (1, (STACK % ("{H}", "{H}"), STACK % ("{n}", "{n}"), STACK % ("{y}", "{y}"))),
        "closure": (
            1,
            (
                "def {U}({Q}):\n    {block}\n    return {H}",
                "def {U}({K}):\n    {block}\n    return {H}",
                "def {U}({K}):\n    {block}\n    return {n}",
                "def {U}({Q}):\n    return {n}",
                "def {U}({K}):\n    return {test}",
            ),
        ),
        "unwrapped": (
            2,
            (
                "{U} = {M}\nif {U} is not None:\n    {block}",
                "{U} = {M}\nif {U} is not None:\n    {block}" + ELSE,
            ),
        ),
        "return": (1, RETURNS),
        "jump": (1, JUMPS),
    },
    tests=(INSTANCE_TESTS,),
    numbers=INSTANCE_NUMBERS,
    computed=0.5,
    ints=("0", "1", "2", "3", "4", "-1", "-2"),
    floats=INSTANCE_FLOATS,
    parts=True,
    lenient=True,
    most_depth=3,
    most_text=200,
)
