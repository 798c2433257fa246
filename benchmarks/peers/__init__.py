"""The systems that the harness measures, in the order in which they take turns."""

from .base import Case, Peer, Prepared, Skipped
from .jax_peer import JaxPeer
from .onnxruntime_peer import OnnxRuntimePeer
from .openvino_peer import OpenVinoPeer
from .torch_peers import AutotunePeer, CalibratedPeer, CompilePeer, EagerPeer, StrettoPeer
from .torchscript import TorchScriptPeer

__all__ = ["DEFAULT", "PEERS", "Case", "Peer", "Prepared", "Skipped"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        EagerPeer(),
        CompilePeer(),
        AutotunePeer(),
        TorchScriptPeer(),
        OnnxRuntimePeer(),
        OpenVinoPeer(),
        JaxPeer(),
        StrettoPeer(),
        CalibratedPeer(),
    )
}

# Measured when no peer is named: all but the one that takes minutes to compile and the one that
# needs a calibration.
DEFAULT: tuple[str, ...] = tuple(
    name for name in PEERS if name not in (AutotunePeer.name, CalibratedPeer.name)
)
