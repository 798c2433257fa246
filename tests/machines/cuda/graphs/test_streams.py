"""Plans on several streams: what has to come before what does, by streams and events alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from stretto.device.plan import Action
from stretto.device.tree import Leaf, Node, Seq
from stretto.machines.cuda.graphs.streams import StreamsExecutable, StreamsHost
from tests.e2e.machines import CUDA, check, on_cuda
from tests.machines.cuda.cuda_fakes import FakeCuda
from tests.machines.cuda.graphs.programs import (
    APART,
    PROGRAMS,
    arguments,
    library_and_draws,
    on_fake_gpu,
    side_by_side,
    with_library,
)

STREAMS = replace(APART, enqueue="streams")


class Watched:
    """What a launcher puts on streams, as sets of what comes before it."""

    def __init__(self, launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on: dict[int, frozenset[int]] = defaultdict(frozenset)
        self.events: dict[int, frozenset[int]] = {}
        self.before: dict[int, frozenset[int]] = {}
        self.streams: set[int] = set()
        record, wait = launcher.record, launcher.wait_for

        def recorded(event: int, stream: int) -> None:
            self.events[event] = self.on[stream]
            record(event, stream)

        def waited(stream: int, event: int) -> None:
            self.on[stream] |= self.events[event]
            wait(stream, event)

        monkeypatch.setattr(launcher, "record", recorded)
        monkeypatch.setattr(launcher, "wait_for", waited)

    def put(self, number: int, stream: int) -> None:
        self.before[number] = self.on[stream]
        self.on[stream] |= {number}
        self.streams.add(stream)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_results(cuda: FakeCuda, function: Callable[..., Any]) -> None:
    gpu = on_fake_gpu(cuda, function, arguments(0), STREAMS)
    for seed in range(3):
        inputs = arguments(seed)
        wanted = function(*inputs)
        for one, other in zip(gpu(*inputs), wanted if isinstance(wanted, tuple) else (wanted,),
                              strict=True):  # fmt: skip
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [side_by_side, with_library])
def test_every_edge_is_kept(
    cuda: FakeCuda, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = on_fake_gpu(cuda, function, arguments(0), STREAMS)
    watched = Watched(gpu.machine, monkeypatch)
    main = gpu.run.plan.tree.main.body
    assert isinstance(main, Seq)
    numbers = {id(part): number for number, part in enumerate(main.children)}
    put = StreamsHost.node

    def node(host: StreamsHost, part: Node[Action], at: Any) -> None:
        if isinstance(part, Leaf):
            assert host.launcher_stream() == host.stream
            watched.put(numbers[id(part)], host.stream)
        put(host, part, at)

    monkeypatch.setattr(StreamsHost, "node", node)
    monkeypatch.setattr(
        StreamsHost, "launcher_stream", lambda host: gpu.machine.stream(), raising=False
    )
    gpu(*arguments(0))
    after = gpu.run.arrangements[id(main)].after
    for number, earlier in enumerate(after):
        assert watched.before[number] >= set(earlier)
    assert len(watched.streams) > 1
    assert watched.on[0] == set(range(len(main.children)))  # the caller goes on behind all


def test_streams_of_the_caller(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0), STREAMS)
    inputs = arguments(0)
    with gpu.machine.fake.on(9):
        gpu(*inputs)
    streams = {line.split("stream=")[1].split()[0] for line in cuda.log("cuLaunchKernelEx")}
    assert "9" in streams and "0" not in streams and len(streams) > 1


def test_in_a_capture_the_streams_are_branches_of_its_graph(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0), STREAMS)
    run = gpu.run
    run.waits, run.can_be_captured = False, True
    for stream in (3, *run.side_streams):
        cuda.capture(stream, 11)
    inputs = arguments(0)
    gpu.machine.fake.know(*inputs)
    with gpu.machine.fake.on(3):
        run(list(inputs))
    assert len(gpu.machine.replays) == len(run.plan.launches)
    assert len(run.captures) == 1


def test_on_the_emulated_gpu() -> None:
    for function in (*PROGRAMS, library_and_draws):
        program = on_cuda(check(function, arguments(0), backend=CUDA, options=STREAMS))
        assert isinstance(program, StreamsExecutable)
