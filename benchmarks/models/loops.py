"""Programs around a model: a sampler, a solver, a rollout, and a model with chosen experts."""

from functools import partial

from . import diffusion, ode, rollout
from .counted import counted_work
from .diffusion import DiffusionConfig
from .entry import ZooEntry
from .ode import ODEConfig
from .real import RealConfig, make_mixtral
from .rollout import RolloutConfig

_SMALL = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
_SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3}
_FULL = {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
_FULL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}

_ENTRIES = (
    ZooEntry(
        "diffusion",
        "ten steps of diffusion around a small UNet",
        diffusion.make,
        {"full": DiffusionConfig.full(), "small": DiffusionConfig.small()},
        partial(counted_work, diffusion.make),
        loop=True,
    ),
    ZooEntry(
        "mixtral_small",
        "Mixtral of 2 layers and 4 experts, 16 tokens",
        make_mixtral,
        {"full": RealConfig(16, _FULL), "small": RealConfig(5, _SMALL)},
        partial(counted_work, make_mixtral),
        batched=False,
        decides=True,
    ),
    ZooEntry(
        "ode",
        "adaptive Dormand-Prince around a perceptron",
        ode.make,
        {"full": ODEConfig.full(), "small": ODEConfig.small()},
        ode.work,
        loop=True,
        decides=True,
    ),
    ZooEntry(
        "rollout",
        "a policy balances a pole, 500 steps",
        rollout.make,
        {"full": RolloutConfig.full(), "small": RolloutConfig.small()},
        rollout.work,
        loop=True,
        batched=False,
        decides=True,
    ),
)
LOOPS: dict[str, ZooEntry] = {entry.name: entry for entry in _ENTRIES}
