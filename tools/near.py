"""Run the tests near the changed files: a quick check during work, which does not replace all
tests.

    python tools/near.py [--since REVISION] [--list] [ARGUMENTS OF PYTEST]

Changed files are those in which the checkout differs from the revision (`main`), including
new ones. Near a file are the tests that import it, directly or through other modules of
`tests/`, and those that mirror it: for `src/stretto/passes/fold.py` the tests
`tests/passes/test_fold*.py`, or all of `tests/passes/` if there are none. Near a page of
`docs/` is `tests/test_docs.py`. A test that reaches changed code only through
`stretto.compile` is not found: `make test` has some of these.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]


def changed(since: str) -> list[PurePosixPath]:
    """Return the files that differ from a revision or are new, relative to the root of the
    checkout."""
    found = set[str]()
    for command in (
        ("git", "diff", "--name-only", "--merge-base", since),
        ("git", "ls-files", "--others", "--exclude-standard"),
    ):
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found.update(said.stdout.splitlines())
    return [PurePosixPath(name) for name in sorted(found)]


def module_name(file: PurePosixPath) -> str:
    """Return the name by which tests import a file; "" if they cannot."""
    if file.suffix != ".py":
        return ""
    parts = file.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text: str) -> Iterator[str]:
    """Yield the modules that a source may import; for `from a import b` both `a` and `a.b`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case _:
                pass


def near(file: PurePosixPath, imports: Mapping[PurePosixPath, set[str]]) -> Iterable[PurePosixPath]:
    """Return the tests near a file. imports: the modules that each Python file of `tests/`
    imports."""
    reached, todo = {file}, [file]
    while todo:
        name = module_name(todo.pop())
        more = [other for other, names in imports.items() if name in names] if name else []
        todo.extend(other for other in more if other not in reached)
        reached.update(more)
    tests = [test for test in imports if test.name.startswith("test_")]
    found = {test for test in tests if test in reached}
    if file.is_relative_to("src/stretto"):
        found.update(_mirrors(file, tests))
    elif file.suffix == ".md":
        found.add(PurePosixPath("tests/test_docs.py"))
    elif file.is_relative_to("tests") and file.suffix != ".py":
        found.update(test for test in tests if test.parent == file.parent)
    return sorted(found)


def _mirrors(file: PurePosixPath, tests: list[PurePosixPath]) -> list[PurePosixPath]:
    folder = "tests" / file.parent.relative_to("src/stretto")
    prefix = f"test_{file.stem}"
    own = [test for test in tests if test.parent == folder and test.name.startswith(prefix)]
    while not own and folder != PurePosixPath("tests"):
        own = [test for test in tests if test.is_relative_to(folder)]
        folder = folder.parent
    return own


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default="main", help="the revision to compare with")
    parser.add_argument("--list", action="store_true", help="name the tests, and do not run them")
    arguments, further = parser.parse_known_args()
    imports = {
        PurePosixPath(path.relative_to(ROOT)): set(imported(path.read_text()))
        for path in (ROOT / "tests").rglob("*.py")
    }
    tests = set[str]()
    for file in changed(arguments.since):
        found = near(file, imports)
        tests.update(map(str, found))
        print(f"{file}: {', '.join(map(str, found)) or 'no test is near'}")
    if arguments.list or not tests:
        return 0
    command = (sys.executable, "-m", "pytest", *sorted(tests), *further)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
