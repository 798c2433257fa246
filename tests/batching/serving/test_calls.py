"""Which keywords one batch can share; the modes of torch that a request brings along."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch

from stretto.batching.serving import InstanceFailure, InstanceResult, Stream, StreamOptions
from stretto.batching.serving.requests import InstanceCall, Modes, shared_key
from stretto.batching.serving.worker import outcomes_of
from tests.batching.serving.fakes import LIMIT_S, Recorded

TENSOR = torch.ones(2)


@pytest.mark.parametrize(
    "value", [1, -3, 2.0, -0.0, float("nan"), "a", b"a", True, None, 1j, (1, ("a", 2.0)), TENSOR]
)
def test_the_same_keywords_share_a_batch(value: Any) -> None:
    assert shared_key({"a": value, "b": 1}) == shared_key({"b": 1, "a": value})


def test_what_computes_another_thing_does_not_share_a_batch() -> None:
    class Text(str):
        pass

    values = [1, 1.0, True, 0.0, -0.0, "1", b"1", None, (1,), (1.0,), [1], [1], 1j, Text("1")]
    values += [TENSOR, TENSOR.clone()]
    for one, other in itertools.combinations(values, 2):
        assert shared_key({"a": one}) != shared_key({"a": other}), (one, other)
    assert shared_key({"a": 1}) != shared_key({"b": 1}) != shared_key({})


def test_modes_of_the_caller_hold_in_the_batch() -> None:
    def modes(x: int) -> Modes:
        return Modes.current()

    run = Recorded(modes)
    with Stream(run, StreamOptions(max_wait_ms=0)) as stream:
        futures = {}
        for grad, inference, autocast in itertools.product([False, True], repeat=3):
            with (
                torch.inference_mode(inference),
                torch.set_grad_enabled(grad),
                torch.autocast("cpu", torch.bfloat16, autocast),
            ):
                futures[Modes.current()] = stream.submit(0)
        assert len(futures) == 8
        for wanted, future in futures.items():
            assert future.result(LIMIT_S) == wanted


@pytest.mark.gradients
def test_requests_under_other_modes_have_other_batches() -> None:
    gate = threading.Event()

    def wait(x: int) -> int:
        gate.wait(LIMIT_S)
        return x

    run = Recorded(wait)
    with Stream(run, StreamOptions(max_wait_ms=0)) as stream:
        stream.submit(0)
        with torch.no_grad():
            stream.submit(1)
        stream.submit(2)
        with torch.no_grad():
            stream.submit(3)
        gate.set()
    # One caller, whose requests stay in order.
    assert run.batches == [[0], [1], [2], [3]]


# ---- a batch that raises as a whole -----------------------------------------------------------


def doubled(x: int) -> int:
    if x < 0:
        raise ValueError(f"{x} is negative")
    return 2 * x


def calls(*values: int) -> list[InstanceCall]:
    return [InstanceCall((value,), {}) for value in values]


@pytest.mark.parametrize(
    "values", [(), (1,), (-1,), (1, -2, 3), (-1, -2), (1, 2, 3, 4, 5, 6, -7), tuple(range(9))]
)
def test_each_fails_for_itself_where_the_whole_run_raises(values: tuple[int, ...]) -> None:
    outcomes = outcomes_of(Recorded(doubled, whole=True), calls(*values))
    for value, outcome in zip(values, outcomes, strict=True):
        if value < 0:
            assert (
                isinstance(outcome, InstanceFailure)
                and str(outcome.error) == f"{value} is negative"
            )
            assert outcome.error.__context__ is None
        else:
            assert outcome == InstanceResult(2 * value)


def test_few_runs_find_one_bad_request() -> None:
    run = Recorded(doubled, whole=True)
    outcomes_of(run, calls(*range(40), -1, *range(23)))
    assert len(run.batches) == 13


def test_a_run_that_only_large_batches_break_is_cut() -> None:
    def small(batch: Any) -> Any:
        if len(batch) > 2:
            raise MemoryError
        return [InstanceResult(call.args[0]) for call in batch]

    assert outcomes_of(small, calls(*range(7))) == [InstanceResult(i) for i in range(7)]


def test_what_exits_is_a_failure_too() -> None:
    def leave(x: int) -> int:
        raise SystemExit(x)

    (outcome,) = outcomes_of(Recorded(leave, whole=True), calls(3))
    assert isinstance(outcome, InstanceFailure) and isinstance(outcome.error, SystemExit)


def test_a_batcher_with_too_few_outcomes_is_found() -> None:
    outcomes = outcomes_of(lambda batch: [InstanceResult(1)], calls(1, 2))
    assert [str(outcome.error) for outcome in outcomes] == [  # type: ignore[union-attr]
        "the batcher gave 1 outcome for 2 calls"
    ] * 2
