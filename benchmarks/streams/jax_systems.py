"""The streams in JAX, whose programs have fixed sizes: inputs are padded to powers of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch import Tensor, nn

from ..peers.base import Skipped

jax.config.update("jax_default_matmul_precision", "highest")

Weights = dict[str, Any]
Function = Callable[..., Any]


def prepared(name: str, module: nn.Module) -> tuple[Function, Callable[[], int]]:
    """Return the call of a stream, and a count of the programs compiled for it."""
    if name not in _PROGRAMS:
        raise Skipped("padding an image changes the result of a convolution")
    weights = {key: jnp.asarray(value.numpy()) for key, value in module.state_dict().items()}
    program, axis, of = _PROGRAMS[name]
    function: Any = jax.jit(program(module))

    def call(*tensors: Tensor) -> list[np.ndarray]:
        arrays = [tensor.numpy() for tensor in tensors]
        size = arrays[of].shape[axis]
        longest = 1 << (size - 1).bit_length()
        padding = [(0, longest - size if n == axis else 0) for n in range(arrays[of].ndim)]
        arrays[of] = np.pad(arrays[of], padding)
        results = function(weights, size, *arrays)
        return [np.asarray(result) for result in _cut(name, results, size)]

    return call, lambda: function._cache_size()


def _cut(name: str, results: Any, size: int) -> list[Any]:
    if name == "decode":
        scores, caches = results
        return [scores, caches[:, :, :, : size + 1]]
    return [results[:size]]


def _linear(weights: Weights, name: str, x: Any) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    x = (x - mean) / jnp.sqrt(variance + 1e-5)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _tagger(module: Any) -> Function:
    def layer(weights: Weights, number: int, x: Any) -> Any:
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, d = (weights[f"lstm.{part}_l{number}"] for part in parts)
        hidden = u.shape[1]

        def step(state: Any, row: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(row + u @ h + d, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(hidden, x.dtype)
        return jax.lax.scan(step, (zeros, zeros), x @ w.T + b)[1]

    def run(weights: Weights, size: Any, words: Any) -> Any:
        x = weights["embedding.weight"][words]
        for number in range(module.lstm.num_layers):
            x = layer(weights, number, x)
        return _linear(weights, "head", x)

    return run


def _encoder(module: Any) -> Function:
    def run(weights: Weights, size: Any, words: Any) -> Any:
        length = words.shape[0]
        table = weights["positions.weight"]
        x = weights["embedding.weight"][words] + table[:length]
        x = _norm(weights, "norm", x)
        known = jnp.arange(length) < size
        for number, layer in enumerate(module.layers):
            at = f"layers.{number}"
            parts = _linear(weights, f"{at}.qkv", x).reshape(length, 3, layer.heads, -1)
            q, k, v = parts.transpose(1, 2, 0, 3)
            scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
            shares = jax.nn.softmax(jnp.where(known, scores, -jnp.inf), axis=-1)
            attended = (shares @ v).transpose(1, 0, 2).reshape(length, -1)
            x = _norm(weights, f"{at}.norms.0", x + _linear(weights, f"{at}.out", attended))
            up = jax.nn.gelu(_linear(weights, f"{at}.up", x), approximate=False)
            x = _norm(weights, f"{at}.norms.1", x + _linear(weights, f"{at}.down", up))
        return x

    return run


def _decode(module: Any) -> Function:
    def run(weights: Weights, size: Any, token: Any, caches: Any) -> Any:
        x = weights["embedding.weight"][token] + weights["positions.weight"][size]
        room = jnp.pad(caches, [(0, 0), (0, 0), (0, 0), (0, 1), (0, 0)])
        known = jnp.arange(room.shape[3]) <= size
        longer = []
        for number, layer in enumerate(module.layers):
            at = f"layers.{number}"
            normed = _norm(weights, f"{at}.norms.0", x)
            parts = _linear(weights, f"{at}.qkv", normed).reshape(3, layer.heads, 1, -1)
            cache = jax.lax.dynamic_update_slice(room[number], parts[1:], (0, 0, size, 0))
            scores = parts[0] @ cache[0].swapaxes(1, 2) / np.sqrt(parts.shape[-1])
            shares = jax.nn.softmax(jnp.where(known, scores, -jnp.inf), axis=-1)
            x = x + _linear(weights, f"{at}.out", (shares @ cache[1]).reshape(1, -1))
            up = jax.nn.gelu(
                _linear(weights, f"{at}.up", _norm(weights, f"{at}.norms.1", x)), approximate=True
            )
            x = x + _linear(weights, f"{at}.down", up)
            longer.append(cache)
        scores = _norm(weights, "norm", x) @ weights["embedding.weight"].T
        return scores[0], jnp.stack(longer)

    return run


def _batches(module: Any) -> Function:
    def run(weights: Weights, size: Any, x: Any) -> Any:
        for number, conv in enumerate(module.convs):
            filters = weights[f"convs.{number}.weight"]
            x = jax.lax.conv_general_dilated(x, filters, conv.stride, [(1, 1), (1, 1)])
            x = jax.nn.relu(x + weights[f"convs.{number}.bias"][:, None, None])
        return _linear(weights, "head", x.mean((2, 3)))

    return run


_PROGRAMS: dict[str, tuple[Callable[[Any], Function], int, int]] = {
    "tagger": (_tagger, 0, 0),
    "bert": (_encoder, 0, 0),
    "decode": (_decode, 3, 1),
    "batches": (_batches, 0, 0),
}
"""By the stream's name: the program, the axis to pad, and the input that has it."""
