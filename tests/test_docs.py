"""Check that each relative link in the Markdown leads to a file, and to a heading if it
names one."""

import re
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)

_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def broken_links(document: Path) -> list[str]:
    """Return the link targets in `document` that do not exist; links to other sites are not
    followed."""
    text = _CODE.sub("", document.read_text())
    return [target for target in _LINK.findall(text) if not _resolves(document, target)]


def _resolves(document: Path, target: str) -> bool:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return True
    name, _, anchor = target.partition("#")
    file = document.parent / name if name else document
    if not file.exists():
        return False
    return not anchor or anchor in _anchors(file)


def _anchors(file: Path) -> set[str]:
    """Return the anchors that a Markdown viewer derives from headings: lower case, dashes for
    spaces."""
    headings = _HEADING.findall(file.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    assert broken_links(document) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `heading`, here\n")
    document = tmp_path / "page.md"
    document.write_text(
        "# Top\n[a](other.md) [b](other.md#a-heading-here) [c](#top) [d](https://example.org/x)\n"
        "![gone](gone.png) [e](other.md#nowhere)\n"
        "`[in](code.md)`\n```\n[in a](block.md)\n```\n"
    )
    assert broken_links(document) == ["gone.png", "other.md#nowhere"]


# ---- names of files ---------------------------------------------------------------------------
_FILE = re.compile(r"`([\w/]+\.py)`|\(([\w/]+\.py)\)|\b(\w+(?:/\w+)+\.py)")
_FOLDERS = ("src", "tests", "checks", "benchmarks", "tools", "examples")
_MADE_UP = frozenset(
    ("random.py", "program.py", "model.py", "mod.py", "m.py", "x.py", "folder/file.py")
)
"""Names of files in examples, and of dumps, which do not exist."""


def missing_files(text: str, files: Collection[str]) -> list[str]:
    """Return the Python files that a text names, by the end of their path, and that do not
    exist."""
    named = {next(filter(None, found.groups())) for found in _FILE.finditer(text)} - _MADE_UP
    return sorted(
        name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)
    )


def test_files_that_are_named_exist() -> None:
    """In the docs, except past decisions, and in the sources of the package and the checks."""
    files = [str(p.relative_to(ROOT)) for folder in _FOLDERS for p in (ROOT / folder).rglob("*.py")]
    pages = [page for page in DOCUMENTS if "decisions" not in page.parts]
    sources = [path for folder in ("src", "checks") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path): missing_files(path.read_text(), files) for path in (*pages, *sources)}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_file_that_does_not_exist_is_found() -> None:
    text = "`gone.py` (passes/fold.py) machines/cpu/gone.py `cpu/machine.py`"
    files = ["src/passes/fold.py", "src/machines/cpu/machine.py"]
    assert missing_files(text, files) == ["gone.py", "machines/cpu/gone.py"]


# ---- the glossary ----------------------------------------------------------------------------
_TERM = re.compile(r"`([A-Za-z][A-Za-z0-9]*)`")


def missing_terms(text: str) -> list[str]:
    """Return the names in code font in a text that are no class, function or alias of the
    package."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = dict.fromkeys(_TERM.findall(text))
    return [n for n in names if not re.search(rf"^(class|def) {n}\b|^{n} = ", source, re.MULTILINE)]


def test_the_glossary_names_what_there_is() -> None:
    assert missing_terms((ROOT / "docs" / "reference" / "glossary.md").read_text()) == []


def test_a_term_that_is_gone_is_found() -> None:
    assert missing_terms("`Kernel`, `NoSuchClass`, `for`") == ["NoSuchClass", "for"]
