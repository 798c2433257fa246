"""ONNX Runtime, on programs written by hand with its own control-flow operators."""

import importlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..models.attention import Attention
from ..models.blockdrop import BlockDrop, BlockDropPolicy
from ..models.deepspeech2 import DeepSpeech2
from ..models.groups import GROUPS
from ..models.lstm import LSTM
from ..models.nasrnn import NASRNN
from ..models.rae import RAE
from ..models.seq2seq import Seq2Seq
from ..models.skipnet import SkipNet
from .base import Case, Peer, Prepared, Skipped, arrays_to_numpy

# The module (imported late, as it needs the onnx package), the function and how it is written.
PROGRAMS: dict[type[nn.Module], tuple[str, str, str]] = {
    LSTM: ("onnx_recurrent", "lstm", "fused LSTM operator per layer"),
    NASRNN: ("onnx_recurrent", "nasrnn", "Scan operator"),
    Attention: ("onnx_recurrent", "attention", "Loop operator"),
    Seq2Seq: ("onnx_recurrent", "seq2seq", "Loop operator"),
    RAE: ("onnx_recurrent", "rae", "Loop over nodes, If for leaves"),
    DeepSpeech2: ("onnx_recurrent", "deepspeech2", "fused LSTM operator per layer"),
    BlockDrop: ("onnx_vision", "blockdrop", "If operator per block"),
    BlockDropPolicy: ("onnx_vision", "blockdrop_policy", "If operator per block"),
    SkipNet: ("onnx_vision", "skipnet", "If operator per block"),
}


class OnnxRuntimePeer(Peer):
    name: ClassVar[str] = "onnxruntime"

    def prepare(self, case: Case) -> Prepared:
        require_packages("onnx", "onnxruntime")
        model, note = onnx_program(case)
        session = session_of(model, case.threads)
        feeds = {
            declared.name: tensor.numpy()
            for declared, tensor in zip(session.get_inputs(), case.inputs, strict=True)
        }
        return Prepared(lambda: session.run(None, feeds), arrays_to_numpy, note)


def require_packages(*packages: str) -> None:
    """Raise `Skipped` if a package is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"{package} is not installed (pip install 'stretto[bench]')")


def onnx_program(case: Case) -> tuple[bytes, str]:
    """Return the model's ONNX program, and how it was made. Raises `Skipped` if there is none."""
    if hasattr(case.module, "by_torch_compile"):
        raise Skipped("a loop of the package's Python code is not exported")
    if type(case.module) in PROGRAMS:
        module_name, function, note = PROGRAMS[type(case.module)]
        programs = importlib.import_module(f".{module_name}", __package__)
        return getattr(programs, function)(case.module, case.config).SerializeToString(), note
    entry = next((group[case.name] for group in GROUPS.values() if case.name in group), None)
    if entry is None:
        raise Skipped(f"no ONNX program is written for {type(case.module).__name__}")
    if entry.decides:
        raise Skipped("what runs depends on values, and a trace would hold one call's decisions")
    return exported(case.module, case.inputs), "exported by torch.onnx"


def exported(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    dynamic: Sequence[Mapping[int, str]] = (),
) -> bytes:
    """Export the model by torch.onnx. dynamic: per input, its dims of any size by name."""
    names = [f"input{number}" for number in range(len(inputs))]
    axes = {name: dict(dims) for name, dims in zip(names, dynamic, strict=False)}
    made = io.BytesIO()
    torch.onnx.export(
        module, inputs, made, input_names=names, dynamic_axes=axes or None, dynamo=False
    )
    return made.getvalue()


def session_of(model: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its threads spin during a run, but not after it, where they would disturb the next system.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
