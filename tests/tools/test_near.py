"""Which tests are near a changed file."""

from pathlib import PurePosixPath

import pytest

from tools.near import imported, module_name, near

FILES = {
    "tests/helper.py": "import stretto.passes.fold",
    "tests/other_helper.py": "from tests import helper",
    "tests/e2e/test_user.py": "from tests.other_helper import something",
    "tests/passes/test_fold.py": "",
    "tests/passes/test_fold_tables.py": "",
    "tests/passes/test_dce.py": "from stretto.passes import dce",
    "tests/machines/cpu/test_pool.py": "",
    "tests/machines/test_registry.py": "",
    "tests/test_docs.py": "",
}
IMPORTS = {PurePosixPath(name): set(imported(text)) for name, text in FILES.items()}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (
            "src/stretto/passes/fold.py",
            ["e2e/test_user.py", "passes/test_fold.py", "passes/test_fold_tables.py"],
        ),
        ("src/stretto/passes/dce.py", ["passes/test_dce.py"]),
        (
            "src/stretto/passes/new.py",
            ["passes/test_dce.py", "passes/test_fold.py", "passes/test_fold_tables.py"],
        ),
        ("src/stretto/machines/cpu/include/abi.h", ["machines/cpu/test_pool.py"]),
        ("tests/helper.py", ["e2e/test_user.py"]),
        ("tests/passes/test_dce.py", ["passes/test_dce.py"]),
        ("docs/tutorial/start.md", ["test_docs.py"]),
        ("Makefile", []),
    ],
)
def test_near(changed: str, tests: list[str]) -> None:
    assert [str(test) for test in near(PurePosixPath(changed), IMPORTS)] == [
        f"tests/{test}" for test in tests
    ]


def test_names_by_which_files_are_imported() -> None:
    assert module_name(PurePosixPath("src/stretto/passes/__init__.py")) == "stretto.passes"
    assert module_name(PurePosixPath("tests/levels.py")) == "tests.levels"
    assert module_name(PurePosixPath("src/stretto/runtime/probes.cpp")) == ""
