"""JAX programs of the models with loops and trees: scan, fori_loop and while_loop."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..models.attention import Attention, AttentionConfig
from ..models.deepspeech2 import DeepSpeech2, DeepSpeech2Config
from ..models.lstm import LSTM, LSTMCell, LSTMConfig
from ..models.nasrnn import NASRNN, NASRNNConfig
from ..models.rae import RAE, RAEConfig
from ..models.seq2seq import EOS, SOS, Seq2Seq, Seq2SeqConfig
from .jax_layers import Program, conv_weights, convolve
from .weights import array, lstm_weights

Cell = tuple[jax.Array, jax.Array, jax.Array]


def cell_weights(cell: LSTMCell) -> Cell:
    """(input weight [I, 4H], hidden weight [H, 4H], bias [4H])."""
    weight, hidden_weight, bias = lstm_weights(cell)
    return jnp.asarray(weight.T), jnp.asarray(hidden_weight.T), jnp.asarray(bias)


def lstm_step(gates: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm_layer(weights: Cell, x: jax.Array) -> jax.Array:
    """x [T, ..., I] -> h of all steps; the inputs' products in one, then a scan."""
    input_weight, hidden_weight, bias = weights
    projected = x @ input_weight + bias

    def step(state: Any, row: jax.Array) -> Any:
        h, c = state
        h, c = lstm_step(row + h @ hidden_weight, c)
        return (h, c), h

    zero = jnp.zeros((*x.shape[1:-1], hidden_weight.shape[0]), x.dtype)
    return lax.scan(step, (zero, zero), projected)[1]


def lstm(model: LSTM, config: LSTMConfig) -> Program:
    def program(cells: list[Cell], x: jax.Array) -> jax.Array:
        for weights in cells:
            x = lstm_layer(weights, x)
        return x[-1]

    return program, [cell_weights(cell) for cell in model.cells]


def nasrnn(model: NASRNN, config: NASRNNConfig) -> Program:
    def program(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        input_weight, hidden_weight = weights

        def step(state: Any, row: jax.Array) -> Any:
            h, c = state
            g = jnp.split(row + h @ hidden_weight, 8, axis=-1)
            sigmoid, relu, tanh = jax.nn.sigmoid, jax.nn.relu, jnp.tanh
            p0 = tanh(sigmoid(g[0]) * relu(g[1]))
            p1 = tanh(sigmoid(g[2]) + relu(g[3]))
            p2 = tanh(tanh(g[4]) * sigmoid(g[5]))
            p3 = sigmoid(tanh(g[6]) + sigmoid(g[7]))
            c = tanh(p0 + c) * p1
            return (tanh(c * tanh(p2 + p3)), c), None

        zero = jnp.zeros_like(x[0])
        return lax.scan(step, (zero, zero), x @ input_weight)[0][0]

    maps = (model.input_map.weight, model.hidden_map.weight)
    return program, tuple(jnp.asarray(array(weight).T) for weight in maps)


def attention(model: Attention, config: AttentionConfig) -> Program:
    def program(weights: Any, x: jax.Array, keys: jax.Array, values: jax.Array) -> Any:
        query_map, key_map, value_map, output_map = weights

        def step(slot: Any, state: Any) -> Any:
            x, keys, values = state
            keys = lax.dynamic_update_slice_in_dim(keys, x @ key_map, slot, axis=2)
            values = lax.dynamic_update_slice_in_dim(values, x @ value_map, slot, axis=2)
            scores = (x @ query_map) @ jnp.swapaxes(keys, 2, 3) * model.scale
            return jax.nn.softmax(scores, axis=-1) @ values @ output_map, keys, values

        return lax.fori_loop(config.start, config.slots, step, (x, keys, values))

    maps = (model.query, model.key, model.value, model.output)
    return program, tuple(jnp.asarray(array(weight)) for weight in maps)


def seq2seq(model: Seq2Seq, config: Seq2SeqConfig) -> Program:
    def program(weights: Any, h: jax.Array, c: jax.Array) -> Any:
        embedding, (input_weight, hidden_weight, bias), output, output_bias = weights

        def running(state: Any) -> jax.Array:
            step, _, _, token, _ = state
            return (token != EOS).any() & (step < config.max_length)

        def advance(state: Any) -> Any:
            step, h, c, token, tokens = state
            gates = embedding[token] @ input_weight + h @ hidden_weight + bias
            h, c = lstm_step(gates, c)
            token = jnp.argmax(h @ output + output_bias, axis=-1).astype(jnp.int32)
            return step + 1, h, c, token, tokens.at[step].set(token)

        token = jnp.full(config.batch, SOS, jnp.int32)
        tokens = jnp.full((config.max_length, config.batch), EOS, jnp.int32)
        _, h, _, _, tokens = lax.while_loop(running, advance, (0, h, c, token, tokens))
        return tokens, h

    weights = (
        jnp.asarray(array(model.embedding.weight)),
        cell_weights(model.cell),
        jnp.asarray(array(model.output.weight).T),
        jnp.asarray(array(model.output.bias)),
    )
    return program, weights


def rae(model: RAE, config: RAEConfig) -> Program:
    """Nodes in the order of their numbers, children first; codes replace leaves in one buffer."""

    def program(weights: Any, leaves: Any, left: Any, right: Any, is_leaf: Any, root: Any) -> Any:
        weight, bias = weights

        def encode(node: Any, codes: jax.Array) -> jax.Array:
            children = jnp.concatenate([codes[left[node]], codes[right[node]]])
            return codes.at[node].set(jnp.tanh(children @ weight + bias))

        def visit(node: Any, codes: jax.Array) -> jax.Array:
            return lax.cond(is_leaf[node], lambda node, codes: codes, encode, node, codes)

        return lax.fori_loop(0, root + 1, visit, leaves)[root]

    encoder = model.encoder
    return program, (jnp.asarray(array(encoder.weight).T), jnp.asarray(array(encoder.bias)))


def deepspeech2(model: DeepSpeech2, config: DeepSpeech2Config) -> Program:
    def program(weights: Any, x: jax.Array) -> jax.Array:
        convolutions, cells, output, output_bias = weights
        x = x.transpose(0, 2, 3, 1)
        for conv, parts in zip((model.conv1, model.conv2), convolutions, strict=True):
            x = jnp.clip(convolve(x, parts, conv), 0.0, 20.0)
        x = x.transpose(1, 0, 3, 2).reshape(x.shape[1], x.shape[0], -1)
        for cell in cells:
            x = lstm_layer(cell, x)
        return x @ output + output_bias

    weights = (
        [conv_weights(model.conv1, model.bn1), conv_weights(model.conv2, model.bn2)],
        [cell_weights(cell) for cell in model.layers],
        jnp.asarray(array(model.fc.weight).T),
        jnp.asarray(array(model.fc.bias)),
    )
    return program, weights
