"""Requests that come one by one, from many threads, answered in batches.

    submit ----> Waiting ----> Worker ----> run(calls) ----> Future
    (any thread)  (a bound)    (its thread)  (the batcher)

`requests.py` has the interface to the batcher, a function from calls to outcomes; one request and
its future; and which requests make the next batch, decided without threads or clocks. `stream.py`
is what users hold, and the mixin that gives a batcher its `submit`. `worker.py` has the thread that
runs batches, all that threads share, and how the requests are found that fail when a whole run
raises. `metrics.py` counts.
"""

from stretto.batching.serving.metrics import Histogram, Metrics
from stretto.batching.serving.requests import Call, Failure, Outcome, Run, Value
from stretto.batching.serving.stream import Stream, Streaming, StreamOptions

__all__ = [
    "Call",
    "Failure",
    "Histogram",
    "Metrics",
    "Outcome",
    "Run",
    "Stream",
    "StreamOptions",
    "Streaming",
    "Value",
]
