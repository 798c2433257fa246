"""Fixtures and settings shared by all tests."""

import difflib
import gc
import logging
import lzma
import os
import random
import signal
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.sampling import chosen

pytest_plugins = ("tests.native", "tests.compile_times")

GOLDEN_FOLDER = Path(__file__).parent / "golden"
MOST_LINES = 400
"""Maximum number of lines of a golden file's diff that a failing test shows."""

# Property tests compile, so their time says nothing about correctness: no deadline.
hypothesis.settings.register_profile("stretto", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "stretto")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files instead of comparing"
    )
    parser.addoption(
        "--whole", action="store_true", help="run all cases where `make test` runs a sample"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Processes that run tests, and those that tests start, read each other's compiled bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A command that a shell starts in the background ignores Ctrl-C, which some tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # One thread for eager PyTorch: its pool would fight with the workers of the CPU machine for
    # the same cores, does not survive the fork that some tests make, and changes sums.
    torch.set_num_threads(1)
    _seed_only_what_is_there()
    # pytest adds its handlers to each logger that does not propagate. With a handler on this one,
    # torch reads and formats the stack several times in each capture.
    logging.getLogger("torch.__trace").propagate = True
    cache = getattr(config, "cache", None)  # there is none with `-p no:cacheprovider`
    if cache is not None:  # leave the cache of the user who runs the tests alone
        os.environ["STRETTO_CACHE"] = str(cache.mkdir("stretto"))


def _seed_only_what_is_there() -> None:
    """Do not seed devices that are absent: for these torch.manual_seed stores the seed together
    with the caller's stack, as text, which takes 5 ms for each of them under pytest."""
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None


def _seed(name: str) -> None:
    """Make all numbers drawn from now on depend on the name alone."""
    random.seed(name)
    torch.manual_seed(random.getrandbits(32))


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):  # imported next; modules may draw tensors
        _seed(collector.nodeid)


@pytest.fixture(autouse=True)
def _drawn_alike(request: pytest.FixtureRequest) -> None:
    """Let a test without its own seed draw the same numbers in each run, so that failures can be
    repeated."""
    _seed(request.node.nodeid)


@pytest.fixture(autouse=True)
def _grad_mode(request: pytest.FixtureRequest) -> Generator[None]:
    """Turn grad mode off, except for tests with the mark `gradients`: parameters of the tests'
    modules require grad, and with grad mode on they would run eager."""
    with torch.set_grad_enabled(request.node.get_closest_marker("gradients") is not None):
        yield


@pytest.hookimpl(trylast=True)  # after -k and -m have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--whole"):
        kept = chosen(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="no NVIDIA GPU that torch can use")
    for item in items:
        if item.get_closest_marker("gpu"):  # the keywords have the names of folders, too
            item.add_marker(no_gpu)


def pytest_collection_finish() -> None:
    """Exclude torch and thousands of tests from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(text, name)` checks that `text` equals the content of `tests/golden/<name>`.

    With `--update-golden` (`make golden`) the file is rewritten instead; read the diff
    before committing it. A file whose name ends with `.xz` is stored compressed.
    """
    return golden_check(GOLDEN_FOLDER, update=request.config.getoption("--update-golden"))


def golden_check(folder: Path, *, update: bool) -> Callable[[str, str], None]:
    """Return the function of the `golden` fixture, for any folder."""

    def check(text: str, name: str) -> None:
        path = folder / name
        opened = lzma.open if path.suffix == ".xz" else open
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                with opened(path, "rt") as file:
                    if file.read() == text:
                        return
            with opened(path, "wt") as file:
                file.write(text)
            return
        if not path.exists():
            pytest.fail(f"no golden file {name}: run `make golden`, read it, commit it")
        with opened(path, "rt") as file:
            expected = file.read()
        if expected != text:
            diff = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm=""
            )
            shown = list(islice(diff, MOST_LINES))
            pytest.fail(
                "\n".join([f"{name} changed; if it should, run `make golden`", *shown]),
                pytrace=False,
            )

    return check
