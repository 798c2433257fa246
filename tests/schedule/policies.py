"""The policies as tests of many programs take them, with a search of few moves."""

from __future__ import annotations

from benchmarks.scheduling.search import SearchPolicy
from stretto.schedule.policies import POLICIES as REGISTERED
from stretto.schedule.policy import Policy

POLICIES: dict[str, Policy] = {**REGISTERED, "search": SearchPolicy(steps=6)}
