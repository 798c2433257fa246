"""The policies, one per file: each registers itself when this folder is imported."""

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from stretto.options import Options
from stretto.schedule.policies.search import SearchPolicy
from stretto.schedule.policy import POLICIES, Policy

__all__ = ["POLICIES", "chosen_policy"]

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)


def chosen_policy(options: Options) -> Policy | None:
    """The policy that the options name; None where they leave it to the scheduler."""
    policy = POLICIES.get(options.policy)
    if isinstance(policy, SearchPolicy):
        steps, seconds = options.search_steps, options.search_seconds
        return replace(policy, steps=steps, seconds=seconds, seed=options.seed)
    return policy
