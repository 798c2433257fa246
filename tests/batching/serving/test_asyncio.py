"""Streams and `asyncio`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

import stretto
from stretto.batching.serving import Stream, StreamOptions
from tests.batching.serving.fakes import LIMIT_S, Gated, Recorded

AT_ONCE = StreamOptions(max_batch=4, max_wait_ms=0)
TIGHT = StreamOptions(max_batch=1, max_wait_ms=0, max_waiting=1)


def run_async(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def busy(stream: Stream, run: Gated, *values: Any) -> list[asyncio.Task[Any]]:
    """A task for each value; the first runs, the others wait, or wait for room."""
    tasks = [asyncio.create_task(stream.asubmit(values[0]))]
    await until(lambda: not run.begun.empty())
    run.next_batch()
    tasks += [asyncio.create_task(stream.asubmit(value)) for value in values[1:]]
    await until(lambda: _present(stream) == len(values))
    return tasks


def _present(stream: Stream) -> int:
    metrics = stream.metrics()
    return metrics.running + metrics.waiting + metrics.blocked


def test_results_errors_and_keywords() -> None:
    def halved(x: int, by: int = 2) -> float:
        return x / by

    async def main() -> None:
        async with Stream(Recorded(halved), AT_ONCE) as stream:
            assert await stream.asubmit(3) == 1.5
            with pytest.raises(ZeroDivisionError):
                await stream.asubmit(3, by=0)
            asked = [stream.asubmit(x, by=1 + x % 2) for x in range(50)]
            assert await asyncio.gather(*asked) == [x / (1 + x % 2) for x in range(50)]
        with pytest.raises(stretto.StreamClosed):
            await stream.asubmit(1)

    run_async(main())


def test_what_no_asyncio_future_may_hold_is_raised() -> None:
    """An await of `asyncio.wrap_future` would never return before Python 3.12."""

    def stop(x: int) -> int:
        raise StopIteration(x)

    async def main() -> None:
        async with Stream(Recorded(stop), AT_ONCE) as stream:
            with pytest.raises(RuntimeError, match="StopIteration"):
                await stream.asubmit(1)

    run_async(main())


def test_a_cancelled_task_takes_its_request_along() -> None:
    async def main() -> None:
        run = Gated()
        async with Stream(run, AT_ONCE) as stream:
            tasks = await busy(stream, run, 0, 1, 2)
            tasks[0].cancel()  # runs already: only the task ends
            tasks[1].cancel()
            await asyncio.wait(tasks[:2])
            assert tasks[0].cancelled() and tasks[1].cancelled()
            run.let_go(2)
            assert await tasks[2] == 2
        assert run.batches == [[0], [2]]
        metrics = stream.metrics()
        assert (metrics.finished, metrics.cancelled) == (2, 1)

    run_async(main())


def test_the_loop_goes_on_while_tasks_wait_for_room() -> None:
    async def main() -> None:
        run = Gated()
        async with Stream(run, TIGHT) as stream:
            tasks = await busy(stream, run, 0, 1, 2, 3)
            assert (stream.metrics().waiting, stream.metrics().blocked) == (1, 2)
            tasks[2].cancel()
            await asyncio.wait([tasks[2]])
            assert stream.metrics().blocked == 1
            run.let_go(3)
            assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == [0, 1, 3]
        assert run.batches == [[0], [1], [3]]

    run_async(main())


def test_a_task_waits_for_room_as_long_as_it_may() -> None:
    async def main() -> None:
        run = Gated()
        options = StreamOptions(1, 0, 1, full_timeout_s=0.01)
        async with Stream(run, options) as stream:
            tasks = await busy(stream, run, 0, 1)
            with pytest.raises(stretto.StreamFull, match=r"within 0.01 s"):
                await stream.asubmit(2)
            run.let_go(2)
            assert await asyncio.gather(*tasks) == [0, 1]

    run_async(main())


def test_an_outer_timeout_ends_the_wait_for_room() -> None:
    async def main() -> None:
        run = Gated()
        async with Stream(run, TIGHT) as stream:
            tasks = await busy(stream, run, 0, 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.asubmit(2), 0.01)
            assert stream.metrics().blocked == 0
            run.let_go(2)
            assert await asyncio.gather(*tasks) == [0, 1]

    run_async(main())


def test_a_full_stream_raises_where_that_is_asked_for() -> None:
    async def main() -> None:
        run = Gated()
        async with Stream(run, StreamOptions(1, 0, 1, when_full="raise")) as stream:
            tasks = await busy(stream, run, 0, 1)
            with pytest.raises(stretto.StreamFull):
                await stream.asubmit(2)
            run.let_go(2)
            assert await asyncio.gather(*tasks) == [0, 1]

    run_async(main())


def test_close_tells_tasks_why_they_have_no_result() -> None:
    async def main() -> None:
        run = Gated()
        stream = Stream(run, TIGHT)
        running, waiting, blocked = await busy(stream, run, 0, 1, 2)
        closing = asyncio.create_task(stream.aclose(cancel_waiting=True))
        with pytest.raises(stretto.StreamClosed, match="cancel_waiting"):
            await waiting
        with pytest.raises(stretto.StreamClosed, match=r"it was closed by close\(\)"):
            await blocked
        assert not closing.done()
        run.let_go()
        await closing
        assert await running == 0

    run_async(main())


def test_a_closed_coroutine_withdraws_its_request() -> None:
    async def main() -> None:
        run = Gated()
        async with Stream(run, AT_ONCE) as stream:
            tasks = await busy(stream, run, 0)
            asked = stream.asubmit(1)
            asked.send(None)
            assert stream.metrics().waiting == 1
            asked.close()
            assert stream.metrics().waiting == 0 and stream.metrics().cancelled == 1
            run.let_go()
            await tasks[0]
        assert run.batches == [[0]]

    run_async(main())


def test_a_loop_that_is_closed_does_not_harm_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    run = Gated()
    stream = Stream(run, AT_ONCE)
    loop = asyncio.new_event_loop()
    task = loop.create_task(stream.asubmit(0))
    loop.run_until_complete(asyncio.sleep(0))
    run.next_batch()
    loop.close()
    run.let_go(2)
    assert stream.submit(1).result(LIMIT_S) == 1
    assert caplog.text == ""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
    stream.close()
