"""One word for one thing: no two classes have one name, and few files."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "stretto"

# Files that machines, printers and languages have one of each, under one name.
OF_EACH = frozenset(
    (
        "costs",  # of a machine, and the model
        "executable",
        "function",
        "kernel",
        "machine",
        "select",
        "statements",  # of the user's source, of rewritten code, of printed code
        "text",  # of Programs, of the device language, plain text
    )
)


def test_no_two_classes_have_one_name() -> None:
    found = defaultdict[str, list[str]](list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_no_three_files_have_one_name() -> None:
    found = defaultdict[str, list[str]](list)
    for path in sorted(SOURCE.rglob("*.py")):
        found[path.stem].append(str(path.relative_to(SOURCE)))
    found = {name: files for name, files in found.items() if name not in OF_EACH | {"__init__"}}
    assert {name: files for name, files in found.items() if len(files) > 2} == {}
