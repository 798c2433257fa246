"""The result of a benchmark run: one record, written as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .floor import Rates
from .measure import Protocol, Timing

Status = Literal["ok", "wrong", "skipped", "failed"]
OWN_SYSTEM = "stretto"
CALIBRATED = "stretto_calibrated"
"""stretto planned with measured costs: not a peer."""


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system on one model.

    status: `wrong` ran but missed the accuracy gate, `skipped` does not support the model or takes
        longer to prepare than the protocol allows, `failed` raised; `reason` says more for each of
        these.
    error: largest difference from eager in float64, relative to the output's largest value.
    compile_s: preparing and the first two calls, without two steady runs.
    predicted_ms: what the system expects of a call, where it makes such predictions.
    """

    system: str
    status: Status
    reason: str = ""
    note: str = ""
    error: float | None = None
    compile_s: float | None = None
    timing: Timing | None = None
    predicted_ms: float | None = None

    @property
    def prediction_error(self) -> float | None:
        """Relative difference of the prediction from the median; positive if the prediction is
        longer."""
        if self.predicted_ms is None or self.timing is None:
            return None
        return self.predicted_ms / self.timing.median_ms - 1


@dataclass(frozen=True, slots=True)
class ModelResult:
    """All systems on one model. `config` is the model's configuration, a dataclass; `floor_ms` is
    None where the rates could not be measured."""

    model: str
    summary: str
    preset: str
    config: Any
    floor_ms: float | None
    systems: tuple[SystemResult, ...]

    def median_ms(self, system: str) -> float | None:
        """None unless the system ran and passed the accuracy gate."""
        for result in self.systems:
            if result.system == system and result.status == "ok" and result.timing:
                return result.timing.median_ms
        return None

    def speedup(self, system: str, over: str = "eager") -> float | None:
        mine, other = self.median_ms(system), self.median_ms(over)
        return other / mine if mine and other else None

    def fastest_peer(self) -> str | None:
        """The fastest system other than stretto in any of its variants."""
        times = {
            result.system: self.median_ms(result.system)
            for result in self.systems
            if result.system not in (OWN_SYSTEM, CALIBRATED)
        }
        ran = {system: time for system, time in times.items() if time is not None}
        return min(ran, key=ran.__getitem__) if ran else None


@dataclass(frozen=True, slots=True)
class Record:
    """A whole run: the results, with the machine, versions and protocol of the measurement."""

    date: str
    commit: str | None
    machine: str
    versions: dict[str, str]
    threads: int
    batch: int
    protocol: Protocol
    tolerance: float
    rates: Rates | None
    models: tuple[ModelResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with each model's derived ratios beside its measurements."""
        data = asdict(self)
        for model, entry in zip(self.models, data["models"], strict=True):
            fastest = model.fastest_peer()
            entry["fastest_peer"] = fastest
            entry["stretto_over_fastest_peer"] = fastest and model.speedup(OWN_SYSTEM, fastest)
            for system in entry["systems"]:
                system["speedup_over_eager"] = model.speedup(system["system"])
            for result, system in zip(model.systems, entry["systems"], strict=True):
                system["prediction_error"] = result.prediction_error
        return data

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
