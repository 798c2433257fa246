"""Compilers that are missing, fail, are killed or hang, and what a build depends on."""

import ctypes
import multiprocessing
import os
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.errors import BuildError
from stretto.options import Options
from stretto.runtime import compiler
from stretto.runtime.compiler import compile_shared, find_compiler

ANSWER = 'extern "C" int answer() { return 42; }'
FakeCompiler = Callable[[str], Path]


@pytest.fixture
def fresh(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path / "cache")


def test_builds_once(fresh: Options):
    first = compile_shared(ANSWER, fresh)
    assert not first.from_cache
    assert ctypes.CDLL(str(first.path)).answer() == 42
    second = compile_shared(ANSWER, fresh)
    assert second.from_cache and second.path == first.path


def test_damaged_shared_object_is_built_again(fresh: Options):
    path = compile_shared(ANSWER, fresh).path
    path.write_bytes(path.read_bytes()[:-100])
    again = compile_shared(ANSWER, fresh)
    assert not again.from_cache
    assert ctypes.CDLL(str(again.path)).answer() == 42


def test_build_depends_on_source_flags_headers_and_machine(
    fresh: Options, monkeypatch: pytest.MonkeyPatch
):
    paths = {compile_shared(ANSWER, fresh).path}
    paths.add(compile_shared(ANSWER + "\n", fresh).path)
    paths.add(compile_shared(ANSWER, replace(fresh, profile=True)).path)
    monkeypatch.setattr(compiler, "header_text", lambda folder: "other")
    paths.add(compile_shared(ANSWER, fresh).path)
    monkeypatch.setattr(compiler, "cpu", lambda: "other")
    paths.add(compile_shared(ANSWER, fresh).path)
    assert len(paths) == 5


@pytest.mark.parametrize(
    ("processor", "wide"),
    [
        ("Linux x86_64 {'flags': 'fpu avx2 fma avx512f avx512_vnni'}", True),
        ("Linux x86_64 {'flags': 'fpu avx2 fma'}", False),
        ("Linux aarch64 {'Features': 'fp asimd'}", False),
        ("Windows AMD64 {'processor': 'AMD64 Family 25'}", False),
    ],
)
def test_loops_use_the_widest_vectors_that_there_are(
    monkeypatch: pytest.MonkeyPatch, processor: str, wide: bool
):
    monkeypatch.setattr(compiler, "cpu", lambda: processor)
    assert ("-mprefer-vector-width=512" in compiler.build_flags(trace=False)) is wide


def _compile_and_call(options: Options) -> None:
    assert ctypes.CDLL(str(compile_shared(ANSWER, options).path)).answer() == 42


def test_concurrent_processes(fresh: Options):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_compile_and_call, args=(fresh,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(list(fresh.cache_path().rglob("*.so"))) == 1


def test_compiler_that_cxx_names_is_missing(fresh: Options, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "/nonexistent/g++ -m64")
    with pytest.raises(BuildError, match="cannot be run") as caught:
        compile_shared(ANSWER, fresh)
    assert "/nonexistent/g++ -m64" in str(caught.value)
    assert "apt install g++" in str(caught.value)


def test_no_compiler_at_all(fresh: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="no C\\+\\+ compiler found") as caught:
        compile_shared(ANSWER, fresh)
    for hint in ("apt install", "dnf install", "xcode-select", "conda install", "CXX"):
        assert hint in str(caught.value)


def test_cxx_may_have_arguments(monkeypatch: pytest.MonkeyPatch, fresh: Options):
    monkeypatch.setenv("CXX", f"{find_compiler().command[0]} -DVALUE=7")
    built = compile_shared('extern "C" int answer() { return VALUE; }', fresh)
    assert ctypes.CDLL(str(built.path)).answer() == 7


def test_failing_compiler_shows_the_command_and_what_it_said(fresh: Options):
    with pytest.raises(BuildError, match="failed with exit code 1") as caught:
        compile_shared("int main( {", fresh)
    message = str(caught.value)
    assert "-O3" in message and "program.cpp -o" in message
    assert "error: expected" in message


IN_PARTS = """
#ifndef STRETTO_PARTS
#define STRETTO_PARTS 1
#define STRETTO_PART 0
#define STRETTO_CALLS 1
#endif
__attribute__((visibility("hidden"))) int number();
#if 1 % STRETTO_PARTS == STRETTO_PART
int number() { return STRETTO_PARTS; }
#endif
#if STRETTO_CALLS
extern "C" int answer() { return 40 + number(); }
#endif
"""


@pytest.fixture
def two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "available_cpus", lambda: {0, 1})


@pytest.mark.usefixtures("two_parts")
@pytest.mark.parametrize(
    ("splits", "straight", "wanted"), [(True, False, 42), (True, True, 42), (False, False, 41)]
)
def test_parts_are_compiled_apart_and_linked(
    fresh: Options, splits: bool, straight: bool, wanted: int
):
    built = compile_shared(IN_PARTS, fresh, splits=splits, straight=straight)
    assert ctypes.CDLL(str(built.path)).answer() == wanted


@pytest.mark.usefixtures("two_parts")
@pytest.mark.parametrize(("straight", "calls"), [(False, "-O3"), (True, "-O1")])
def test_calls_that_run_once_are_optimised_little(
    fresh: Options, fake_compiler: FakeCompiler, tmp_path: Path, straight: bool, calls: str
):
    """The parts, which have the loops, are optimised wholly in any case."""
    real = shlex.join(find_compiler().command)
    fake_compiler(f'echo "$@" >> {tmp_path}/said; exec {real} "$@"')
    compile_shared(IN_PARTS, fresh, splits=True, straight=straight)
    commands = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    compiled = [words for words in commands if "-c" in words]
    levels = [
        ("-DSTRETTO_CALLS=1" in words, *(word for word in words if word.startswith("-O")))
        for words in compiled
    ]
    assert sorted(levels) == [(False, "-O3"), (False, "-O3"), (True, calls)]


@pytest.mark.usefixtures("two_parts")
def test_a_part_that_fails(fresh: Options):
    wrong = IN_PARTS.replace("return STRETTO_PARTS", "return unknown")
    with pytest.raises(BuildError, match="failed with exit code 1") as caught:
        compile_shared(wrong, fresh, splits=True)
    assert "unknown" in str(caught.value)
    assert not list(fresh.cache_path().rglob("*.*"))


@pytest.mark.usefixtures("two_parts")
def test_ctrl_c_kills_all_parts(fresh: Options, fake_compiler: FakeCompiler, tmp_path: Path):
    fake_compiler(
        f"sleep 600 & echo $! > {tmp_path}/child$!; sleep 0.3; kill -INT {os.getpid()}; wait"
    )
    with pytest.raises(KeyboardInterrupt):
        compile_shared(IN_PARTS, fresh, splits=True)
    children = list(tmp_path.glob("child*"))
    assert children and not any(map(is_running, children))


def test_long_output_is_cut(fresh: Options, fake_compiler: FakeCompiler):
    fake_compiler("seq 1 100; exit 3")
    with pytest.raises(BuildError, match="exit code 3") as caught:
        compile_shared(ANSWER, fresh)
    assert "\n30\n" in caught.value.message and "... 70 more lines" in caught.value.message
    assert "\n31\n" not in caught.value.message


def test_killed_compiler(fresh: Options, fake_compiler: FakeCompiler):
    fake_compiler("kill -9 $$")
    with pytest.raises(BuildError, match="was killed by SIGKILL") as caught:
        compile_shared(ANSWER, fresh)
    assert "out of memory" in str(caught.value)
    assert not list(fresh.cache_path().rglob("*.*"))


def test_killed_part_of_the_compiler(fresh: Options, fake_compiler: FakeCompiler):
    fake_compiler("echo 'fatal error: Killed signal terminated program cc1plus' >&2; exit 1")
    with pytest.raises(BuildError, match="exit code 1") as caught:
        compile_shared(ANSWER, fresh)
    assert "out of memory" in str(caught.value)


def test_compiler_that_hangs_is_killed(
    fresh: Options, fake_compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    fake_compiler(f"sleep 600 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setattr(compiler, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(BuildError, match="took more than 0 s"):
        compile_shared(ANSWER, fresh)
    assert not is_running(tmp_path / "child")


def test_ctrl_c_kills_the_compiler(fresh: Options, fake_compiler: FakeCompiler, tmp_path: Path):
    fake_compiler(
        f"sleep 600 & echo $! > {tmp_path}/child; sleep 0.3; kill -INT {os.getpid()}; wait"
    )
    with pytest.raises(KeyboardInterrupt):
        compile_shared(ANSWER, fresh)
    assert not is_running(tmp_path / "child")
    assert not [path for path in fresh.cache_path().rglob("*") if path.is_file()]


def is_running(pid_file: Path) -> bool:
    command = Path("/proc") / pid_file.read_text().strip() / "cmdline"
    time.sleep(0.05)
    return command.exists() and command.read_bytes() != b""  # a zombie has none


def test_full_disk_in_the_compiler(fresh: Options, fake_compiler: FakeCompiler):
    fake_compiler("echo 'cannot write: No space left on device'; exit 1")
    with pytest.raises(BuildError, match="no space left") as caught:
        compile_shared(ANSWER, fresh)
    assert str(fresh.cache_path()) in str(caught.value)


@pytest.mark.parametrize(
    ("cxx", "message"),
    [
        ("/bin/true", "wrote no file"),
        ("g++ 'unbalanced", "CXX is not a command: No closing quotation"),
        ("/bin/false", "failed with exit code 1"),
        ("/etc/passwd", "cannot be run"),
        ("/", "cannot be run"),
    ],
)
def test_cxx_that_is_no_compiler(
    fresh: Options, monkeypatch: pytest.MonkeyPatch, cxx: str, message: str
):
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(BuildError, match=message) as caught:
        compile_shared(ANSWER, fresh)
    assert caught.value.remedy


def test_warm_cache_without_a_compiler(
    fresh: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    built = compile_shared(ANSWER, fresh)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = compile_shared(ANSWER, fresh)
    assert found.from_cache and found.path == built.path
    with pytest.raises(BuildError, match="no C"):
        compile_shared(ANSWER + "// other", fresh)


def test_cache_folder_that_looks_like_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert compile_shared(ANSWER, Options(cache_dir="-o")).path.is_relative_to(tmp_path / "-o")


def _compile_for_ever(options: Options) -> None:
    with suppress(BuildError):
        compile_shared(ANSWER, options)


def test_the_compiler_ends_with_a_parent_that_is_killed(
    fresh: Options, fake_compiler: FakeCompiler, tmp_path: Path
):
    pid_file = tmp_path / "child"
    fake_compiler(f"sleep 600 & echo $! > {pid_file}; wait")
    parent = multiprocessing.get_context("spawn").Process(target=_compile_for_ever, args=(fresh,))
    parent.start()
    while not (pid_file.exists() and pid_file.read_text().strip()):
        time.sleep(0.02)
    parent.kill()
    parent.join()
    for _ in range(200):
        if not is_running(pid_file) and not _left(fresh):
            break
        time.sleep(0.05)
    assert not is_running(pid_file)
    assert not _left(fresh)


def _left(options: Options) -> list[str]:
    """Folders of builds that are not done; another process may remove them meanwhile."""
    folders = (folder for folder, _, _ in os.walk(options.cache_path()))
    return [folder for folder in folders if "building-" in folder]


LINKED = "int number() { return 42; }"
CALLING = 'int number(); extern "C" int answer() { return number(); }'


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What compilers are called with."""
    found = list[str]()
    run = compiler._run

    def noted(command: tuple[str, ...], scratch: Path, folder: Path) -> None:
        found.append(" ".join(command))
        run(command, scratch, folder)

    monkeypatch.setattr(compiler, "_run", noted)
    return found


def test_a_linked_source_is_compiled_once_for_all_programs(fresh: Options, commands: list[str]):
    first = compile_shared(CALLING, fresh, linked=[LINKED])
    second = compile_shared(f"{CALLING} // other", fresh, linked=[LINKED])
    third = compile_shared(f"{CALLING} // other", fresh, linked=[LINKED])
    for built in (first, second, third):
        assert ctypes.CDLL(str(built.path)).answer() == 42
    assert [command.count("linked0.cpp") for command in commands] == [1, 0]
    assert first.path != second.path and third.from_cache


def test_a_damaged_linked_object_is_made_again(fresh: Options, commands: list[str]):
    compile_shared(CALLING, fresh, linked=[LINKED])
    (kept,) = fresh.cache_path().rglob("*.o")
    kept.write_bytes(b"")
    built = compile_shared(f"{CALLING} // other", fresh, linked=[LINKED])
    assert ctypes.CDLL(str(built.path)).answer() == 42
    assert [command.count("linked0.cpp") for command in commands] == [1, 1]


@pytest.mark.parametrize("count", [1, 2])
def test_a_linked_source_that_fails(fresh: Options, count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "available_cpus", lambda: set(range(count)))
    with pytest.raises(BuildError, match="failed with exit code 1") as caught:
        compile_shared(CALLING, fresh, linked=["int number() { return unknown; }"])
    assert "unknown" in str(caught.value)
    assert not list(fresh.cache_path().rglob("*.*"))
