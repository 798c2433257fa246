"""Requests that arrive one by one, from many threads, and are answered in batches.

    submit ----> Waiting ----> Worker ----> run(calls) ----> Future
    (any thread)  (bounded)    (its thread)  (the batcher)

`requests.py` has the interface to the batcher, a function from calls to outcomes; one request
and its future; and the choice of the requests of the next batch, made without threads or
clocks. `stream.py` has the user's interface, and the mixin that gives a batcher its `submit`.
`worker.py` has the thread that runs batches, the state shared between threads, and the search
for the failing requests when a whole run raises. `metrics.py` counts.
"""

from stretto.batching.serving.metrics import Histogram, Metrics
from stretto.batching.serving.requests import (
    BatchRunner,
    InstanceCall,
    InstanceFailure,
    InstanceResult,
    Outcome,
)
from stretto.batching.serving.stream import Stream, Streaming, StreamOptions

__all__ = [
    "BatchRunner",
    "Histogram",
    "InstanceCall",
    "InstanceFailure",
    "InstanceResult",
    "Metrics",
    "Outcome",
    "Stream",
    "StreamOptions",
    "Streaming",
]
