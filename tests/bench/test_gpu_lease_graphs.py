"""The stages `graphs` and `shapes` against the stand-in for a driver, and what needs a GPU by other
stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu import graphs, shapes, turns
from benchmarks.gpu.device import Bench
from benchmarks.gpu.engine import Log, Settings
from benchmarks.gpu.graphs import COPIED, GROUPS, MOVED, Programs
from benchmarks.gpu.results import WrongValue
from benchmarks.gpu.saved import Program, Saved, entry_of
from benchmarks.gpu.systems import Case
from benchmarks.harness import reference_outputs, relative_error
from benchmarks.models.real import MissingPackage
from benchmarks.peers.base import Skipped
from stretto.machines.cuda.graphs.kept import GraphCounts

pytest.importorskip("triton")


@pytest.fixture
def dry(tmp_path_factory: pytest.TempPathFactory, built_cuda: Any) -> Bench:
    """A dry run's machine; its driver is compiled once."""
    folder = tmp_path_factory.mktemp("lease")
    (folder / "driver").mkdir()
    (folder / "driver" / built_cuda.path.name).symlink_to(built_cuda.path)
    return Bench(True, folder)


class Branches(nn.Module):
    """x [B, 5] -> [B, 5]: two branches that need nothing of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 7), nn.Linear(5, 7)
        self.last = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.tanh(self.left(x)), torch.relu(self.right(x)).cumsum(1)
        return self.last(left.softmax(1)) + self.last(right)


def case_of(module: nn.Module, *inputs: Tensor) -> Case:
    saved = Saved(Path("no such folder"))
    return Case(Program("branches"), saved, None, module, inputs, module, inputs)


# ---- what is run -------------------------------------------------------------------------------
def test_every_system_is_in_one_group() -> None:
    systems = [name for group in GROUPS.values() for name in group]
    assert len(systems) == len(set(systems))
    peers = {"eager", "eager-graph", "compile-max-autotune"}
    assert set(systems) == {*graphs.SETTINGS, *graphs.PROGRAMS, *peers}
    assert all(set(entry_of(model).presets) >= {"small", "full"} for model in graphs.MODELS)


def settings_of(folder: Path, dry_run: bool, *chosen: str) -> Settings:
    return Settings(folder, folder, Log(folder / "log.txt"), dry_run, chosen)


def test_models_can_be_chosen(tmp_path: Path) -> None:
    groups = [group for group in GROUPS if group != "max-autotune"]
    found = graphs.jobs(settings_of(tmp_path, False, "deepfm", "rae"))
    assert [job.name for job in found] == [f"deepfm {group}" for group in groups]
    everything = settings_of(tmp_path, False)
    assert len(graphs.jobs(everything)) == len(graphs.MODELS) * len(groups)
    tuned = [job.name for job in graphs.jobs(everything, tuned=True)]
    assert tuned == [f"{model} max-autotune" for model in graphs.AUTOTUNED]
    dry = settings_of(tmp_path, True, "googlenet")
    assert not graphs.jobs(dry) and not shapes.jobs(dry)


def test_no_name_of_a_model() -> None:
    with pytest.raises(KeyError, match="there is no model 'no_such'"):
        entry_of("no_such")


# ---- systems on the emulated GPU ---------------------------------------------------------------
@pytest.mark.whole
def test_all_of_stretto_s_systems(dry: Bench) -> None:
    torch.manual_seed(0)
    module, x = Branches().eval(), torch.randn(3, 5)
    programs, case = Programs(), case_of(module, x)
    wanted = reference_outputs(module, (x,))
    found: dict[str, dict[str, Any]] = {}
    for name in (*graphs.SETTINGS, *graphs.PROGRAMS):
        ready = programs.prepare(name, case, dry)
        for _ in range(3):
            assert relative_error(ready.outputs(ready.call()), wanted) < 1e-5, name
        found[name] = ready.details()
    assert len(programs.made) == len(graphs.SETTINGS), "three systems share a program"
    assert "replays_per_call" not in found["stretto"]
    for name in ("stretto-per-kernel", "stretto-library", MOVED, COPIED):
        assert found[name]["replays_per_call"] >= 1, name
        assert "launches_per_call" not in found[name], "the profiler counts them"
    assert found[MOVED]["patched_per_call"] >= 1 and found[MOVED]["as_they_were"] == 0
    assert found[MOVED]["graphs_made_per_call"] == 0, "a graph serves all addresses"


def test_a_program_that_is_one_launch_has_no_inputs_to_patch(dry: Bench) -> None:
    module = nn.ReLU()
    with pytest.raises(Skipped, match="the program is one launch, which is not captured"):
        Programs().prepare(MOVED, case_of(module, torch.randn(3)), dry)


def test_a_library_call_that_cannot_be_captured_is_wrong() -> None:
    refused = SimpleNamespace(executable=SimpleNamespace(refusals=["mm: not permitted"]))
    fast = SimpleNamespace(signatures=[refused, SimpleNamespace(executable=None)])
    with pytest.raises(WrongValue, match="1 library calls cannot be captured: mm: not permitted"):
        graphs.require_none_refused(fast)


# ---- where inputs lie --------------------------------------------------------------------------
def test_inputs_move_from_call_to_call() -> None:
    seen: list[tuple[int, ...]] = []

    def fast(x: Tensor, y: Tensor, again: Tensor) -> Tensor:
        seen.append((x.data_ptr(), y.data_ptr(), again.data_ptr()))
        return x + y.float()

    x, y = torch.randn(3), torch.tensor([1, 2, 3])
    wanted, kept = x + y, x.clone()
    call = graphs.moved(fast, (x, y, x))
    seen.clear()
    for _ in range(2 * graphs.PLACES):
        assert torch.equal(call(), wanted)
    assert all(a[0] != b[0] and a[1] != b[1] for a, b in pairwise(seen))
    assert all(first == again for first, _, again in seen), "an input that is there twice"
    assert len(set(seen)) == graphs.PLACES and torch.equal(x, kept)


def test_a_call_that_uses_inputs_of_an_earlier_one_is_wrong() -> None:
    first: list[Tensor] = []

    def stale(x: Tensor) -> Tensor:
        first.append(x)
        return first[0] + 1

    with pytest.raises(WrongValue, match="with inputs that have moved"):
        graphs.moved(stale, (torch.randn(3),))


def test_inputs_are_copied_to_where_they_lay() -> None:
    seen: list[int] = []

    def fast(x: Tensor) -> Tensor:
        seen.append(x.data_ptr())
        return x * 2

    x = torch.randn(3)
    call = graphs.copied(fast, (x,))
    wanted = x * 2
    assert all(torch.equal(call(), wanted) for _ in range(6))
    assert len(set(seen)) == 1 and seen[0] != x.data_ptr()
    x.fill_(4.0)  # one of the places: a call later is about it
    found = [call() for _ in range(graphs.PLACES)]
    assert sum(torch.equal(one, torch.full((3,), 8.0)) for one in found) == 1


def test_replays_are_counted_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = GraphCounts(made=1, replayed=5, as_they_were=5, patched=7)
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        hit = len(calls) % 2
        counts.replayed += 2
        counts.as_they_were += hit
        counts.patched += 3 * (not hit)

    monkeypatch.setattr(shapes, "counts_of", lambda fast: [counts])
    assert graphs.replays(None, call, 4) == {
        "replays_per_call": 2.0,
        "as_they_were": 2 / 8,
        "patched_per_call": 1.5,
        "graphs_made_per_call": 0.0,
    }
    assert graphs.replays(None, lambda: None, 4)["as_they_were"] is None
    monkeypatch.setattr(shapes, "counts_of", lambda fast: [])
    assert graphs.replays(None, lambda: None, 4) == {}


# ---- memory of shapes --------------------------------------------------------------------------
def test_sizes_are_different_and_the_largest_comes_first() -> None:
    for dimension in shapes.MODELS.values():
        sizes = dimension.sizes(shapes.COUNTS[-1])
        assert len(set(sizes)) == 64 and sizes == sorted(sizes, reverse=True)
        assert sizes[0] == dimension.most and sizes[-1] >= 1


@pytest.mark.whole
def test_one_graph_has_all_shapes(dry: Bench, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []

    def row(name: str, limit_s: float, run: Callable[[], dict[str, Any]]) -> None:
        rows.append({"name": name, **run()})

    reporter: Any = SimpleNamespace(saved=Saved(tmp_path), row=row, job="deepfm stretto")
    shapes.run(reporter, dry)
    assert [one["name"] for one in rows] == [
        "deepfm memory stretto, 1 shape",
        "deepfm memory stretto, 4 shapes",
    ]
    assert [(one["shapes"], one["programs"], one["graphs"]) for one in rows] == [
        (1, 1, 1),
        (4, 1, 1),
    ]
    assert rows[1]["patched"] > 0 and rows[1]["made"] == 1 and rows[1]["error"] < 1e-5
    assert "driver_bytes" not in rows[1], "without a GPU nothing is said of its memory"


def hold(monkeypatch: pytest.MonkeyPatch, capture: Callable[..., Any]) -> shapes.Held:
    """Graphs of eager for each shape; captured by `capture`, with memory that grows as it is."""
    made: list[int] = []

    def counted(call: Callable[[], Any], bench: Bench, pool: Any) -> Callable[[], Any]:
        made.append(1)
        return capture(call)

    monkeypatch.setattr(shapes, "captured", counted)
    kinds = ("driver_bytes", "allocated_bytes", "reserved_bytes")
    monkeypatch.setattr(
        shapes,
        "memory",
        lambda bench: {kind: 1000 + n * len(made) for n, kind in enumerate(kinds, 10)},
    )
    return shapes.hold("deepfm", "graph-each", Bench(True), Saved(Path()))


def test_bytes_are_those_since_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    held = hold(monkeypatch, lambda call: call)
    for count in (1, 4):
        values = held.up_to(count)
        assert values["shapes"] == values["graphs"] == count
        assert values["driver_bytes"] == 10 * count and values["reserved_bytes"] == 12 * count
        assert values["error"] < 1e-5


def test_a_shape_with_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    held = hold(monkeypatch, lambda call: lambda: call() * 1.01)
    with pytest.raises(WrongValue, match="error 1.0e-02"):
        held.up_to(1)


# ---- a model whose package is missing ----------------------------------------------------------
def test_a_missing_package_skips_all_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(model: str, bench: Bench, saved: Saved) -> None:
        raise MissingPackage("torchvision is not installed")

    rows: dict[str, str] = {}

    def row(name: str, limit_s: float, run: Callable[[], dict[str, Any]]) -> None:
        with pytest.raises(Skipped) as caught:
            run()
        rows[name] = str(caught.value)

    sent: list[Any] = []
    monkeypatch.setattr(turns, "case_of", missing)
    reporter: Any = SimpleNamespace(
        job="googlenet library",
        saved=Path(),
        row=row,
        listen=lambda: None,
        send=lambda kind, **content: sent.append((kind, content)),
    )
    turns.serve(graphs.lineup(), reporter, Bench(True))
    reason = "torchvision is not installed"
    assert rows == {f"googlenet {system}": reason for system in GROUPS["library"]}
    assert sent == [("serving", {"systems": []})]
