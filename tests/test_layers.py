"""The dependency order of the design, enforced for every import in `src/stretto`, at any place.

A module may import modules of its own layer and of the layers below. Layers on one level
may not import each other.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "stretto"

# From the bottom up. `text` is below its siblings because errors use it.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("reader", "text"),
    ("errors", "grammar", "options"),
    ("components", "deadline", "dumps", "failures", "locks", "progress", "remarks", "stack"),
    ("ir",),
    ("ops",),
    ("interp",),
    ("passes",),
    ("device",),
    ("extending",),
    ("lowering",),
    ("kernels",),
    ("operators",),
    ("simulator",),
    ("schedule",),
    ("runtime",),
    ("tuning",),
    ("machines",),
    ("machines.cpu", "machines.cuda", "machines.emulator", "machines.interpreter"),
    ("graphs",),
    ("tools",),
)
# The modules that use all stages. Of the layers below, only the tools may import them.
TOP: tuple[str, ...] = (
    "__init__",
    "__main__",
    "batching",
    "call",
    "extending.check",
    "extending.declare",
)

# The parts of `frontends.python`, from the bottom up: each imports only those before it.
PYTHON_FRONTEND: tuple[str, ...] = (
    "tracing",
    "source",
    "values",
    "aliasing",
    "operators",
    "guards",
    "lists",
    "calls",
    "results",
    "interpreter",
    "segments",
    "__init__",
)
# The parts of `batching.frontend`, in the same order.
BATCHING_FRONTEND: tuple[str, ...] = (
    "values",
    "function_builder",
    "python_library",
    "evaluation",
    "guards",
    "frame",
    "dispatch",
    "purity",
    "joins",
    "loops",
    "tensor_results",
    "tensor_operators",
    "attributes",
    "truth",
    "operators",
    "comparisons",
    "items",
    "walks",
    "functions",
    "sequences",
    "methods",
    "patterns",
    "displays",
    "expressions",
    "statements",
    "sources",
    "invocation",
    "application",
    "__init__",
)
# The modules of `call`, in the same order.
CALL: tuple[str, ...] = (
    "signatures",
    "eager",
    "entry",
    "compiler",
    "programs",
    "fallback",
    "saved_file",
    "saved_code",
    "restore",
    "loaded",
    "save",
    "compiled",
    "dynamo",
    "__init__",
)
PARTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("frontends", "python"): PYTHON_FRONTEND,
    ("batching", "frontend"): BATCHING_FRONTEND,
    ("call",): CALL,
}


def allowed_imports() -> dict[str, frozenset[str]]:
    """Return, for each layer, the other layers that it may import."""
    allowed: dict[str, frozenset[str]] = {}
    below: frozenset[str] = frozenset()
    for level in LEVELS:
        allowed |= dict.fromkeys(level, below)
        below |= frozenset(level)
    allowed["frontends"] = frozenset({"text", "errors", "options", "stack", "ir", "ops"})
    everything = below | {"frontends"} | frozenset(TOP)
    allowed["tools"] = everything
    return allowed | dict.fromkeys(TOP, everything)


def violations(source: Path) -> list[str]:
    """Return every import under the package folder `source` that breaks the order, as `file:line:
    why`."""
    allowed = allowed_imports()
    found: list[str] = []
    for path in sorted(source.rglob("*.py")):
        module = path.relative_to(source).with_suffix("").parts
        layer = layer_of(list(module))
        if layer == "__init__" != module[0]:
            found.append(f"{path.relative_to(source)}: `{module[0]}` has no place in LEVELS or TOP")
            continue
        for line, target in imported_layers(ast.parse(path.read_text()), module):
            if target != layer and target not in allowed[layer]:
                found.append(
                    f"{path.relative_to(source)}:{line}: `{layer}` must not import `{target}`"
                )
    return found


def imported_layers(tree: ast.Module, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield line and layer of each import of stretto in `tree`, the source of
    `stretto.<module>`."""
    for line, target in imported_modules(tree, module):
        yield line, layer_of(list(target))


def from_base(node: ast.ImportFrom, module: tuple[str, ...]) -> list[str]:
    """Return the absolute module that `from ... import` names, with relative dots resolved."""
    named = node.module.split(".") if node.module else []
    if node.level == 0:
        return named
    # The package of a module is its name without the last part; this holds for `__init__` too.
    package = ["stretto", *module[:-1]]
    return package[: len(package) - node.level + 1] + named


def layer_of(path: list[str]) -> str:
    """Return the layer of `stretto.<path>`: a machine, or a folder. Any other name is defined in
    `stretto/__init__.py`."""
    known = allowed_imports()
    return next((name for name in (".".join(path[:2]), *path[:1]) if name in known), "__init__")


@pytest.mark.whole
def test_imports_follow_the_order() -> None:
    assert violations(SOURCE) == []


def upward_imports(source: Path, package: tuple[str, ...]) -> list[str]:
    """Return every import, in a package with ordered parts, of a part above the importing one."""
    order = PARTS[package]
    found: list[str] = []
    for path in sorted((source / Path(*package)).rglob("*.py")):
        module = path.relative_to(source).with_suffix("").parts
        level = order.index(module[len(package)])
        for line, target in imported_modules(ast.parse(path.read_text()), module):
            if target[: len(package)] != package:
                continue
            part = target[len(package)] if len(target) > len(package) else "__init__"
            if part not in order or order.index(part) > level:
                found.append(f"{path.relative_to(source)}:{line}: imports `{part}`")
    return found


def imported_modules(
    tree: ast.Module, module: tuple[str, ...]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line of each import of stretto, with each name below stretto that it may
    refer to."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                targets = [alias.name.split(".") for alias in names]
            case ast.ImportFrom(names=names):
                targets = [[*from_base(node, module), alias.name] for alias in names]
            case _:
                continue
        for target in targets:
            if target[0] == "stretto":
                yield node.lineno, tuple(target[1:])


@pytest.mark.parametrize("package", PARTS)
def test_the_parts_of_a_package_follow_their_order(package: tuple[str, ...]) -> None:
    assert upward_imports(SOURCE, package) == []


def module_imports(source: Path) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return, for each module, the modules that it imports at its top level, also if only for
    types."""
    modules = {module_of(path, source): path for path in source.rglob("*.py")}
    found: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_text())
        if not module:  # the package imports its exports on first use
            tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = []
        if module[:3] == INTERPRETER:
            tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
        here = path.relative_to(source).with_suffix("").parts
        targets = {target for _, target in imported_modules(tree, here)}
        found[module] = {t if t in modules else t[:-1] for t in targets} & modules.keys()
    return found


def module_of(path: Path, source: Path) -> tuple[str, ...]:
    parts = path.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


INTERPRETER = ("frontends", "python", "interpreter")
"""Its parts call each other, as Python does: a class may define `__eq__`. So they know each other's
classes by type."""


def test_modules_do_not_import_each_other_in_circles() -> None:
    TopologicalSorter(module_imports(SOURCE)).prepare()  # raises CycleError


def test_a_circle_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "ir/a.py", "from stretto.ir import b")
    plant(tmp_path, "ir/b.py", "if TYPE_CHECKING:\n    from stretto.ir.a import x")
    with pytest.raises(CycleError):
        TopologicalSorter(module_imports(tmp_path)).prepare()


def test_the_batching_frontend_imports_nothing_within_functions() -> None:
    for path in (SOURCE / "batching" / "frontend").rglob("*.py"):
        functions = [
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)
        ]
        assert not any(
            isinstance(node, ast.Import | ast.ImportFrom) for f in functions for node in ast.walk(f)
        ), f"{path} imports within a function"


def test_the_python_frontend_does_not_know_the_one_of_graphs() -> None:
    for path in (SOURCE / "frontends" / "python").rglob("*.py"):
        assert "frontends.fx" not in path.read_text(), path


def test_an_import_of_a_higher_part_of_the_python_frontend_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "frontends/python/values/a.py", "from stretto.frontends.python.lists import b")
    plant(tmp_path, "frontends/python/lists/b.py", "from stretto.frontends.python.values import a")
    plant(tmp_path, "frontends/python/calls/c.py", "from stretto.frontends.python import capture")
    assert upward_imports(tmp_path, ("frontends", "python")) == [
        "frontends/python/calls/c.py:1: imports `capture`",
        "frontends/python/values/a.py:1: imports `lists`",
    ]


@pytest.mark.parametrize(
    ("file", "code", "reason"),
    [
        ("ir/core.py", "from stretto.passes import fuse", "`ir` must not import `passes`"),
        ("ir/core.py", "import stretto.ops.pointwise", "`ir` must not import `ops`"),
        ("ir/core.py", "from stretto import runtime", "`ir` must not import `runtime`"),
        ("ir/core.py", "from .. import kernels", "`ir` must not import `kernels`"),
        ("ir/a/b.py", "from ...machines.cpu import emit", "`ir` must not import `machines.cpu`"),
        ("ir/__init__.py", "from ..ops import x", "`ir` must not import `ops`"),
        ("ir/core.py", "def f():\n    from stretto.ops import x", "`ir` must not import `ops`"),
        ("ir/core.py", "from stretto import Options", "`ir` must not import `__init__`"),
        ("ops/x.py", "import stretto", "`ops` must not import `__init__`"),
        ("frontends/a.py", "import stretto.interp", "`frontends` must not import `interp`"),
        ("passes/fuse.py", "import stretto.frontends", "`passes` must not import `frontends`"),
        ("graphs/a.py", "import stretto.batching", "`graphs` must not import `batching`"),
        ("runtime/cpu.py", "import stretto.call.compiled", "`runtime` must not import `call`"),
        ("errors.py", "from stretto.ir import Op", "`errors` must not import `ir`"),
        (
            "machines/cpu/a.py",
            "from stretto.machines.cuda import driver",
            "`machines.cpu` must not import `machines.cuda`",
        ),
        (
            "device/tree.py",
            "import stretto.machines.cpu.native",
            "`device` must not import `machines.cpu`",
        ),
        ("misc/x.py", "", "`misc` has no place in LEVELS or TOP"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, code: str, reason: str) -> None:
    plant(tmp_path, file, code)
    (found,) = violations(tmp_path)
    assert found.startswith(file) and found.endswith(reason)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("__init__.py", "from stretto.call.compiled import compile\nfrom stretto.tools import cli"),
        ("call/compiled.py", "import stretto.frontends, stretto.runtime, stretto.batching"),
        ("errors.py", "from stretto.text import caret"),
        ("ir/core.py", "from .types import Type\nfrom stretto.errors import VerifyError"),
        ("ir/core.py", "import torch\nfrom torch import passes"),
        ("frontends/python/trace.py", "from stretto.ops import pointwise\nfrom ...ir import core"),
        ("graphs/plan.py", "from stretto.runtime import cpu"),
        ("machines/cpu/a.py", "from stretto.machines.usage import used"),
        ("tools/cli.py", "import stretto\nfrom stretto.frontends.python import trace"),
    ],
)
def test_what_the_order_allows_passes(tmp_path: Path, file: str, code: str) -> None:
    plant(tmp_path, file, code)
    assert violations(tmp_path) == []


def plant(folder: Path, file: str, code: str) -> None:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
