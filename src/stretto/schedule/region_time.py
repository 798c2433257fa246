"""How long a planned leaf takes, by simulation: what choices between plans of it are decided by."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout
from stretto.device.regions import Body
from stretto.device.tree import Leaf, Tree, TreeFunction
from stretto.schedule.footprint import Footprints
from stretto.schedule.leaf_waits import SyncSetting
from stretto.schedule.memory_map import MemoryMap
from stretto.schedule.policy import LeafPlan, Policy
from stretto.schedule.synchronize import Synchronizer
from stretto.simulator.control import Assumed
from stretto.simulator.devices import Device, device_for
from stretto.simulator.simulate import Simulator
from stretto.simulator.work import Works


@dataclass(slots=True)
class RegionTime:
    """Simulates leaves on `units` units, as programs of their own: all buffers have memory of their
    own, and each leaf begins with every unit at once. Kernels of equal names must be equal.

    device: the one that the costs are those of.
    """

    units: int
    costs: CostModel
    footprints: Footprints
    device: Device = field(init=False)
    _works: Works = field(init=False)

    def __post_init__(self) -> None:
        self.device = device_for(self.costs, self.units)
        self._works = Works((), self.device, self.costs)

    def of(self, plan: LeafPlan, policy: Policy) -> float:
        """Seconds from the first task of a plan to its last."""
        ranges = self.costs.uniform or policy.ranges
        setting = SyncSetting(self.units, self.footprints, MemoryMap(), ranges)
        body = Synchronizer(True, setting, lambda buffer: True).function(Leaf(plan))
        kernels = {p.item.name: p.item for p in plan.placed if isinstance(p.item, Kernel)}
        self._works.add(kernels.values())
        program = DeviceProgram(
            self.units,
            Tree((TreeFunction("main", (), (), (), (), (), body),), ()),
            tuple(kernels.values()),
            (("main", FrameLayout(0, ())),),
        )
        choices = Assumed(self.costs.unknown_trips)
        result = Simulator(program, self.device, choices, self.costs, self._works).run()
        return result.seconds - self.device.launch_seconds - self.device.wake_seconds

    def planned(self, body: Body, policy: Policy) -> float:
        """The same of a leaf as a policy plans it, knowing of no other leaf."""
        plan = policy.planner(self.units, self.costs, self.footprints).plan(body)
        return self.of(plan, policy)
