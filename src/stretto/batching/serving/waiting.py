"""Which requests make the next batch, and when: decided without threads and clocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from itertools import count

from stretto.batching.serving.requests import Request

_KEPT = 7 / 8  # of the estimate of a batch's time, when a further batch has run


class Waiting:
    """Requests in the order in which they came; those for which there is no room stand behind the
    others, in `blocked`, and move up as room is made.

    A batch is due when `max_batch` requests wait, or the oldest has waited for `wait_s`: that is
    `max_wait_s` less the time that batches took lately, and half of it at least. So a request is
    answered about `max_wait_s` after it came where batches are short and the stream has time for
    them, and requests still gather where batches are long. A batch has the oldest request and those
    behind it that may share it. A request that may not is passed over, and then all later ones of
    its caller are, too: so those are not reordered.

    The garbage collector may run at any allocation, also inside these methods, and what it frees
    may withdraw requests. So no method iterates over what it then changes.
    """

    def __init__(self, max_batch: int, max_wait_s: float, max_waiting: int) -> None:
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        self.max_waiting = max_waiting
        self.admitted: OrderedDict[int, Request] = OrderedDict()
        self.blocked: OrderedDict[int, Request] = OrderedDict()
        self._numbers = count()
        self._batch_s = 0.0  # mean of late batches; none counts for more than half of max_wait_s

    @property
    def wait_s(self) -> float:
        """How long a request waits for others, in seconds."""
        return self.max_wait_s - self._batch_s

    def took(self, seconds: float) -> None:
        """Tells how long a batch has run."""
        counted = min(seconds, self.max_wait_s / 2)
        self._batch_s = _KEPT * self._batch_s + (1 - _KEPT) * counted

    @property
    def is_full(self) -> bool:
        return len(self.admitted) >= self.max_waiting

    def admit(self, request: Request) -> None:
        """Takes a request at the end, whether or not there is room."""
        request.number = next(self._numbers)
        self.admitted[request.number] = request

    def block(self, request: Request) -> None:
        """Takes a request that waits for room."""
        request.number = next(self._numbers)
        self.blocked[request.number] = request

    def seconds_until_due(self, now: float) -> float | None:
        """0 where a batch is due, None where nothing waits."""
        if not self.admitted:
            return None
        if len(self.admitted) >= self.max_batch:
            return 0.0
        oldest = self.admitted[next(iter(self.admitted))]
        return max(0.0, oldest.entered + self.wait_s - now)

    def take(self) -> list[Request]:
        """Removes and returns the next batch, the oldest request first; empty if nothing waits."""
        batch = list[Request]()
        passed = set[Hashable]()
        for request in list(self.admitted.values()):
            if len(batch) == self.max_batch:
                break
            fits = not batch or request.key == batch[0].key
            if fits and request.caller not in passed:
                batch.append(request)
            else:
                passed.add(request.caller)
        return [request for request in batch if self.admitted.pop(request.number, None)]

    def withdraw(self, request: Request) -> bool:
        """Removes a request; False where it does not wait any more."""
        places = (self.admitted, self.blocked)
        return any(place.pop(request.number, None) is not None for place in places)

    def move_up(self) -> list[Request]:
        """Admits blocked requests for which there is room now, and returns them."""
        moved = list[Request]()
        while self.blocked and not self.is_full:
            number, request = self.blocked.popitem(last=False)
            self.admitted[number] = request
            moved.append(request)
        return moved
