"""JAX programs of models with loops: scans of recurrent layers, while loops of a solver and a
rollout."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch import nn

from ..models.lstm import LSTMCell, LSTMConfig
from ..models.nmt import NMT, GateCell, LSTMByGates, NMTConfig
from ..models.ode import DIFFERENCE, ODE, STAGES, ODEConfig
from ..models.rollout import (
    CART,
    FORCE,
    GRAVITY,
    HALF_LENGTH,
    POLE,
    TICK,
    Rollout,
    RolloutConfig,
)
from .jax_layers import Program
from .jax_recurrent import Cell, cell_weights, lstm_layer, lstm_step
from .weights import array

Dense = tuple[jax.Array, jax.Array]


def gate_weights(cell: nn.Module) -> Cell:
    """Join the weights of a cell with one product per gate into those of a single product."""
    assert isinstance(cell, GateCell)
    maps = (cell.input_maps, cell.hidden_maps)
    inputs, hidden = (
        [dense_weights(one) for one in part if isinstance(one, nn.Linear)] for part in maps
    )
    biases = [first[1] + second[1] for first, second in zip(inputs, hidden, strict=True)]
    input_weight, hidden_weight = (
        jnp.hstack([one[0] for one in part]) for part in (inputs, hidden)
    )
    return input_weight, hidden_weight, jnp.concatenate(biases)


def lstm_tc(model: LSTMByGates, config: LSTMConfig) -> Program:
    def program(cells: list[Cell], x: jax.Array) -> jax.Array:
        for weights in cells:
            x = lstm_layer(weights, x)
        return x[-1]

    return program, [gate_weights(cell) for cell in model.cells]


def encoder_layer(weights: Cell, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """x [T, B, I] -> h of all steps, and the last h and c."""
    input_weight, hidden_weight, bias = weights

    def step(state: Any, row: jax.Array) -> Any:
        h, c = lstm_step(row + state[0] @ hidden_weight, state[1])
        return (h, c), h

    zero = jnp.zeros((*x.shape[1:-1], hidden_weight.shape[0]), x.dtype)
    last, states = lax.scan(step, (zero, zero), x @ input_weight + bias)
    return states, last


def nmt(model: NMT, config: NMTConfig) -> Program:
    def program(weights: tuple[list[Cell], list[Cell]], words: jax.Array) -> jax.Array:
        encoder, decoder = weights
        states: list[tuple[jax.Array, jax.Array]] = []
        for cell in encoder:
            words, last = encoder_layer(cell, words)
            states.append(last)

        def step(carried: Any, _: None) -> Any:
            y, states = carried
            found: list[tuple[jax.Array, jax.Array]] = []
            for (input_weight, hidden_weight, bias), (h, c) in zip(decoder, states, strict=True):
                y, c = lstm_step(y @ input_weight + h @ hidden_weight + bias, c)
                found.append((y, c))
            return (y, found), y

        started = states[-len(decoder) :]
        return lax.scan(step, (started[-1][0], started), None, length=config.decoder_steps)[1]

    return program, (_cells(model.encoder), _cells(model.decoder))


def _cells(layers: nn.ModuleList) -> list[Cell]:
    return [cell_weights(cell) for cell in layers if isinstance(cell, LSTMCell)]


def dense_weights(layer: nn.Linear) -> Dense:
    """(weight [I, O], bias)."""
    return jnp.asarray(array(layer.weight).T), jnp.asarray(array(layer.bias))


def ode(model: ODE, config: ODEConfig) -> Program:
    def program(weights: tuple[Dense, Dense], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        (first, first_bias), (second, second_bias) = weights

        def field(x: jax.Array) -> jax.Array:
            return jnp.tanh(x @ first + first_bias) @ second + second_bias

        def advance(state: Any) -> Any:
            x, slope, time, step, tried = state
            step = jnp.minimum(step, config.end - time)
            slopes = [slope]
            y = x
            for row in STAGES:
                y = x + step * _weighted(row, slopes)
                slopes.append(field(y))
            scale = config.tolerance * (1 + jnp.maximum(jnp.abs(x), jnp.abs(y)))
            ratio = jnp.sqrt(jnp.mean(jnp.square(step * _weighted(DIFFERENCE, slopes) / scale)))
            taken = ratio <= 1
            time = jnp.where(taken, time + step, time)
            x, slope = jnp.where(taken, y, x), jnp.where(taken, slopes[-1], slope)
            step = step * jnp.clip(0.9 * jnp.maximum(ratio, 1e-6) ** -0.2, 0.2, 5.0)
            return x, slope, time, step, tried + 1

        start = (x, field(x), jnp.float32(0.0), jnp.float32(0.05), jnp.int32(0))
        x, _, _, _, tried = lax.while_loop(lambda state: state[2] < config.end, advance, start)
        return x, tried

    return program, (dense_weights(model.first), dense_weights(model.second))


def _weighted(weights: tuple[float, ...], slopes: list[jax.Array]) -> jax.Array:
    return sum(
        (weight * slope for weight, slope in zip(weights, slopes, strict=True) if weight),
        start=jnp.zeros_like(slopes[0]),
    )


def rollout(model: Rollout, config: RolloutConfig) -> Program:
    def program(layers: list[Dense], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        (first, first_bias), (second, second_bias), (third, third_bias) = layers

        def running(carried: Any) -> jax.Array:
            step, state, _ = carried
            upright = (jnp.abs(state[0]) < 2.4) & (jnp.abs(state[2]) < 0.21)
            return upright & (step < config.steps)

        def advance(carried: Any) -> Any:
            step, state, reward = carried
            x = jnp.tanh(jnp.tanh(state @ first + first_bias) @ second + second_bias)
            known = state @ jnp.asarray([0.1, 0.5, 10.0, 2.0])
            force = FORCE * jnp.tanh(known + 0.1 * (x @ third + third_bias)[0])
            return step + 1, _moved(state, force), reward + 1 - 0.01 * jnp.square(force)

        start = (jnp.int32(0), state, jnp.float32(0.0))
        _, state, reward = lax.while_loop(running, advance, start)
        return state, reward

    policy = model.policy
    return program, [dense_weights(one) for one in (policy.first, policy.second, policy.third)]


def _moved(state: jax.Array, force: jax.Array) -> jax.Array:
    """The state of the cart one tick later."""
    _, speed, angle, turn = state
    mass = CART + POLE
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    push = (force + POLE * HALF_LENGTH * jnp.square(turn) * sine) / mass
    inertia = HALF_LENGTH * (4 / 3 - POLE * jnp.square(cosine) / mass)
    turned = (GRAVITY * sine - cosine * push) / inertia
    pushed = push - POLE * HALF_LENGTH * turned * cosine / mass
    return state + TICK * jnp.stack([speed, pushed, turn, turned])
