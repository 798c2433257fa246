"""The policies as tests of many programs take them: a search of few moves."""

from __future__ import annotations

from dataclasses import replace

from stretto.schedule.policies import POLICIES as REGISTERED
from stretto.schedule.policies.search import SearchPolicy
from stretto.schedule.policy import Policy

POLICIES: dict[str, Policy] = {
    name: replace(policy, steps=6) if isinstance(policy, SearchPolicy) else policy
    for name, policy in sorted(REGISTERED.items())
}
