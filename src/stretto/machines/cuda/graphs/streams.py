"""Runs plans on several streams: each part on the stream that its arrangement has for it.

The caller's stream is the first one. Others begin behind what it has when a sequence begins, and it
goes on behind all of them when the sequence ends, so nothing is different for the caller. In a
capture of the caller's the streams become branches of that graph. What the host decides it decides
on the caller's stream, behind everything before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from stretto.device.forms import ProgramInterface
from stretto.device.launch_graph import Arrangement
from stretto.device.plan import Action, Plan, stretch
from stretto.device.tree import Leaf, Node, Seq
from stretto.machines.cuda.graphs.builder import Arrangements
from stretto.machines.cuda.host import Activation, Host
from stretto.machines.cuda.launcher import Launcher
from stretto.machines.cuda.plan import PlanExecutable
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.state import State
from stretto.options import Options
from stretto.runtime.sizes import Values


class StreamsExecutable(PlanExecutable):
    """A plan whose parts are enqueued on several streams."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[TritonSource],
        interface: ProgramInterface,
        options: Options,
        launcher: Launcher,
        arrangements: Arrangements,
    ) -> None:
        super().__init__(plan, sources, interface, options, launcher)
        self.arrangements = arrangements
        most = max((one.arrangement.stream_count for one in arrangements.values()), default=1)
        self.side_streams = launcher.side_streams(most - 1)

    def host(
        self,
        state: State,
        memory: Mapping[int, torch.Tensor],
        capacities: Mapping[int, int],
        sizes: Values,
        stream: int,
    ) -> Host:
        return StreamsHost(self, state, memory, capacities, sizes, stream)


class StreamsHost(Host):
    """The host's part in one run on several streams."""

    executable: StreamsExecutable

    @property
    def events(self) -> list[int]:
        """Of the state, which one run at a time has."""
        if not isinstance(self.state.graphs, list):
            self.state.graphs = list[int]()
        return self.state.graphs

    def node(self, node: Node[Action], at: Activation) -> None:
        if at.depth or not isinstance(node, Seq):
            super().node(node, at)
        else:
            arrangement = self.executable.arrangements[id(node)].arrangement
            _Sequence(self, node, arrangement).run(at)


class _Sequence:
    """One run of a sequence. begun: the streams that are behind all that was on the caller's when
    they were first used. ended: of each node that another stream waits for, the event."""

    def __init__(self, host: StreamsHost, node: Seq[Action], arrangement: Arrangement) -> None:
        self.host = host
        self.launcher = host.executable.launcher
        self.parts = stretch(node)
        self.arrangement = arrangement
        self.main = host.stream
        names = sorted(set(arrangement.streams))
        streams = (self.main, *host.executable.side_streams)
        self.streams = dict(zip(names, streams, strict=False))
        self.begun: dict[int, None] = {}
        self.events: dict[int, int] = {}
        self.before: dict[int, list[int]] = defaultdict(list)
        for earlier, later in arrangement.events:
            self.before[later].append(earlier)
        self.awaited = {earlier for earlier, _ in arrangement.events}
        self.pool = host.events
        self.used = 0

    def run(self, at: Activation) -> None:
        for number in self.arrangement.order:
            part = self.parts[number]
            if isinstance(part, Leaf):
                self.enqueue(number, part, at)
            else:
                self.join()
                self.events.clear()  # the caller's stream is behind all of them
                self.host.node(part, at)
        self.join()

    def enqueue(self, number: int, part: Node[Action], at: Activation) -> None:
        stream = self.streams[self.arrangement.streams[number]]
        if stream != self.main and stream not in self.begun:
            self.launcher.wait_for(stream, self.mark(self.main))
            self.begun[stream] = None
        for earlier in self.before[number]:
            if earlier in self.events:
                self.launcher.wait_for(stream, self.events[earlier])
        self.host.stream = stream
        try:
            with self.launcher.on(stream):
                self.host.node(part, at)
        finally:
            self.host.stream = self.main
        if number in self.awaited:
            self.events[number] = self.mark(stream)

    def mark(self, stream: int) -> int:
        """An event behind all that is on a stream. None is recorded again while the sequence runs;
        where another one does so, within a part, nobody waits for those of this one any more."""
        if self.used == len(self.pool):
            self.pool.append(self.launcher.event())
        event = self.pool[self.used]
        self.used += 1
        self.launcher.record(event, stream)
        return event

    def join(self) -> None:
        """The caller's stream goes on behind all others."""
        for stream in self.begun:
            self.launcher.wait_for(self.main, self.mark(stream))
        self.begun.clear()
