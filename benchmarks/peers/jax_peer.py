"""JAX: programs written by hand with its own control flow, and graphs of torch.export for models
that run straight through, compiled by `jax.jit`."""

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn

from ..models.attention import Attention
from ..models.blockdrop import BlockDrop, BlockDropPolicy
from ..models.deepspeech2 import DeepSpeech2
from ..models.lstm import LSTM
from ..models.nasrnn import NASRNN
from ..models.nmt import NMT, LSTMByGates
from ..models.ode import ODE
from ..models.rae import RAE
from ..models.rollout import Rollout
from ..models.seq2seq import Seq2Seq
from ..models.skipnet import SkipNet
from .base import Case, Peer, Prepared, Skipped, arrays_to_numpy

# The module (imported late, as it needs the jax package), the function and how it is written.
PROGRAMS: dict[type[nn.Module], tuple[str, str, str]] = {
    LSTM: ("jax_recurrent", "lstm", "scan per layer, input projections hoisted"),
    NASRNN: ("jax_recurrent", "nasrnn", "scan, input projections hoisted"),
    Attention: ("jax_recurrent", "attention", "fori_loop"),
    Seq2Seq: ("jax_recurrent", "seq2seq", "while_loop"),
    RAE: ("jax_recurrent", "rae", "fori_loop over nodes, cond for leaves"),
    DeepSpeech2: ("jax_recurrent", "deepspeech2", "scan per layer"),
    BlockDrop: ("jax_vision", "blockdrop", "cond per block"),
    BlockDropPolicy: ("jax_vision", "blockdrop_policy", "cond per block"),
    SkipNet: ("jax_vision", "skipnet", "cond per block"),
    LSTMByGates: ("jax_loops", "lstm_tc", "scan per layer, products of gates joined"),
    NMT: ("jax_loops", "nmt", "scan per layer of the encoder, one of the decoder"),
    ODE: ("jax_loops", "ode", "while_loop"),
    Rollout: ("jax_loops", "rollout", "while_loop"),
}


class JaxPeer(Peer):
    name: ClassVar[str] = "jax"

    def prepare(self, case: Case) -> Prepared:
        if importlib.util.find_spec("jax") is None:
            raise Skipped("jax is not installed (pip install 'stretto[bench]')")
        # Read when XLA makes its thread pool, at JAX's first use in this process.
        os.environ.setdefault("NPROC", str(case.threads))
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        program, weights, note = jax_program(case)
        inputs = [jax.numpy.asarray(tensor.numpy()) for tensor in case.inputs]
        compiled = jax.jit(program)

        def call() -> Any:
            return jax.block_until_ready(compiled(weights, *inputs))

        return Prepared(call, arrays_to_numpy, note)


def jax_program(case: Case) -> tuple[Callable[..., Any], Any, str]:
    """Return a function of (weights, *inputs), its weights, and how it was made. Raises `Skipped`
    if none is written and the model is not a graph of operators that JAX has."""
    if hasattr(case.module, "by_torch_compile"):
        raise Skipped("a loop of the package's Python code is not exported")
    if type(case.module) in PROGRAMS:
        module_name, function, note = PROGRAMS[type(case.module)]
        programs = importlib.import_module(f".{module_name}", __package__)
        return *getattr(programs, function)(case.module, case.config), note
    graphs = importlib.import_module(".jax_graph", __package__)
    return *graphs.graph_program(case.module, case.inputs), "exported by torch.export"
