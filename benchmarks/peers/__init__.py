"""The systems that the harness measures, in the order in which they take turns."""

from .base import Case, Peer, Prepared, Skipped
from .jax_peer import JaxPeer
from .onnxruntime_peer import OnnxRuntimePeer
from .torch_peers import CompilePeer, EagerPeer, StrettoPeer
from .torchscript import TorchScriptPeer

__all__ = ["PEERS", "Case", "Peer", "Prepared", "Skipped"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        EagerPeer(),
        CompilePeer(),
        TorchScriptPeer(),
        OnnxRuntimePeer(),
        JaxPeer(),
        StrettoPeer(),
    )
}
