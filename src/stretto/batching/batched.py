"""`stretto.batch`: call a function that is written for one instance with many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.batching.compiled import CompiledBatch, Flattened, compile_batch, tune_batch
from stretto.batching.explain import BatchProfile, batch_sections, profile_of
from stretto.batching.frontend import Evaluation, Observer
from stretto.batching.host.host_program import OtherInstance
from stretto.batching.instances.types import scalar_type
from stretto.batching.passes.pipeline import BatchPasses
from stretto.batching.serving import (
    InstanceCall,
    InstanceFailure,
    InstanceResult,
    Outcome,
    Streaming,
)
from stretto.batching.tuning import Tuning
from stretto.call.compiler import AUTO, require_backend
from stretto.call.eager import Notices, RequiresGrad, recheck_requires_grad
from stretto.call.signatures import parameter_names
from stretto.errors import CaptureError
from stretto.locks import ForkSafeLock
from stretto.options import Options
from stretto.text import explanation

MOST_EXTENSIONS = 200
"""Number of times a program may be extended for new kinds of data before that is an error."""


@dataclass(slots=True)
class _Signature:
    """The state for calls with the same number of columns and the same static keywords."""

    static: dict[str, Any]
    dynamic: tuple[str, ...]
    evaluation: Evaluation = field(default_factory=Evaluation)
    observer: Observer = field(init=False)
    compiled: CompiledBatch | None = None
    extensions: int = 0
    trained: Callable[[], None] | None = None
    """Raises Trained while the reason holds for which the last batch ran eager; None if it did
    not."""

    def __post_init__(self) -> None:
        self.observer = Observer(self.evaluation)

    def check_gradients(self) -> None:
        """Raise Trained if grad mode is on and the reason why a batch ran eager still holds."""
        if self.trained is not None and torch.is_grad_enabled():
            self.trained()

    def types(self) -> tuple[object, ...]:
        """Return all that is known of the types of instances: cells and classes."""
        return (*self.evaluation.cells, *self.evaluation.classes.infos)

    def forget(self) -> None:
        """Discard the program, since something static has changed."""
        self.evaluation = Evaluation()
        self.observer = Observer(self.evaluation)
        self.compiled = None


class Batched(Streaming):
    """A function or module that runs for many instances at once. Created by `stretto.batch`."""

    def __init__(
        self,
        function: Callable[..., Any],
        backend: str = AUTO,
        options: Options | None = None,
        passes: BatchPasses | None = None,
    ) -> None:
        """passes: the optimisations that are on, to measure the worth of each; None means all."""
        self._passes = passes
        self._function = function
        self._backend = backend
        self._options = options or Options()
        self._notices = Notices(self._options)
        self._signatures: dict[Hashable, _Signature] = {}
        self._last: _Signature | None = None
        self._lock = ForkSafeLock()
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function, updated=())

    def __call__(self, /, *columns: Any, **shared: Any) -> list[Any]:
        """Return the results for all instances, in order: a list equal to `[function(*items,
        **shared) for items in zip(*columns)]`.

        columns: a sequence for each positional parameter, all of one length, or one `Flattened`.
        shared: keyword arguments that all instances share. Raises what the function raises for the
        first instance that fails, with a note that names it; CaptureError, with the line, for what
        cannot be batched; ValueError for columns of different lengths.
        """
        flattened = columns[0] if len(columns) == 1 else None
        if isinstance(flattened, Flattened):
            outcomes = self._run(list(flattened.columns), shared, flattened)
        else:
            outcomes = self._run(_columns(columns), shared)
        for outcome in outcomes:
            if isinstance(outcome, InstanceFailure):
                raise outcome.error
        return [outcome.value for outcome in outcomes if isinstance(outcome, InstanceResult)]

    def run_calls(self, calls: Sequence[InstanceCall]) -> Sequence[Outcome]:
        """Run the calls of a stream as one batch; see `serving.Run`."""
        if not calls:
            return []
        columns: list[Sequence[Any]] = [
            list(column) for column in zip(*(call.args for call in calls), strict=True)
        ]
        return self._run(columns, calls[0].kwargs)

    def _run(
        self,
        columns: list[Sequence[Any]],
        shared: Mapping[str, Any],
        flattened: Flattened | None = None,
    ) -> list[Outcome]:
        count = len(columns[0])
        if not count:
            return []
        with self._lock:
            signature = self._signature(len(columns), shared)
            self._last = signature
            every = [*columns, *([shared[name]] * count for name in signature.dynamic)]
            try:
                signature.check_gradients()
                return self._batch(signature, every, None if signature.dynamic else flattened)
            except RequiresGrad as call:
                signature.trained = recheck_requires_grad(call)
                self._notices.eager(call)
        return [
            _eager(self._function, number, items, shared)
            for number, items in enumerate(zip(*columns, strict=True))
        ]

    def _signature(self, count: int, shared: Mapping[str, Any]) -> _Signature:
        dynamic = tuple(sorted(name for name, value in shared.items() if _is_data(value)))
        static = {name: value for name, value in shared.items() if name not in dynamic}
        key = (count, dynamic, tuple(sorted((name, _key(v)) for name, v in static.items())))
        if key not in self._signatures:
            self._signatures[key] = _Signature(static, dynamic)
        return self._signatures[key]

    def _batch(
        self,
        signature: _Signature,
        columns: list[Sequence[Any]],
        flattened: Flattened | None,
    ) -> list[Outcome]:
        """Run a batch; build the program, or extend it for instances that it does not cover."""
        if signature.compiled is not None and not signature.compiled.is_current():
            signature.forget()
        if signature.compiled is None:
            self._compile(signature, columns)
        while True:
            assert signature.compiled is not None
            try:
                return signature.compiled.run(columns, flattened)
            except OtherInstance as found:
                signature.extensions += 1
                if signature.extensions > MOST_EXTENSIONS:
                    raise CaptureError(
                        f"instances hold more than {MOST_EXTENSIONS} new kinds of data: {found}",
                        remedy="annotate the classes of the data, or keep values of fewer types "
                        "in one place",
                    ) from None
                known = signature.types()
                self._compile(signature, columns)
                if signature.types() == known:  # data that no program can cover
                    raise CaptureError(found.message) from None

    def _compile(self, signature: _Signature, columns: list[Sequence[Any]]) -> None:
        """Build the program for all kinds of data seen so far and in these instances. On failure
        the evaluation is restored."""
        restore = signature.evaluation.snapshot()
        try:
            signature.compiled = self._compiled(signature, columns)
        except BaseException:
            restore()
            raise

    def _compiled(self, signature: _Signature, columns: list[Sequence[Any]]) -> CompiledBatch:
        names = _parameter_names(self._function, len(columns) - len(signature.dynamic))
        titles = [*names, *signature.dynamic]
        types = [
            (title, signature.observer.observe(column, place, title))
            for place, (title, column) in enumerate(zip(titles, columns, strict=True))
        ]
        count = len(names)
        return compile_batch(
            self._function,
            types[:count],
            types[count:],
            signature.static,
            signature.evaluation,
            self._backend,
            self._options,
            self._passes,
        )

    # ---- reports and tuning

    def explain(self) -> str:
        """Return a report of the last call: the blocks and how many instances ran them together at
        which depth, what was not batched and why, and the program of an instance."""
        eager = self._notices.eager_calls
        if self._last is not None and self._last.compiled is not None:
            return explanation((*eager, *batch_sections(self._last.compiled)))
        return explanation(eager or ["nothing has been compiled yet: call it with instances first"])

    def profile(self, /, *columns: Any, runs: int = 20, **shared: Any) -> BatchProfile:
        """Return the time by activity for these instances: medians over `runs` runs. It can be
        printed."""
        with torch.no_grad(), self._lock:
            compiled, every = self._ready("profile", columns, shared)
            return profile_of(compiled, every, runs)

    def tune(self, /, *columns: Any, runs: int = 10, **shared: Any) -> Tuning:
        """Choose the kernels of the tensor operators for batches like this one: by the numbers of
        rows that its blocks run with, and by measuring some programs (the fastest of `runs` runs).

        `explain()` shows the choice. It is stored in the build cache: batchers of this program
        created later, in any process, begin with it. Results are the same except for rounding, for
        any batch. It takes as long as compiling the tensor operators two or three times. If new
        kinds of data extend the program, kernels are chosen as usual until it is tuned again.
        """
        with torch.no_grad(), self._lock:
            compiled, every = self._ready("tune", columns, shared)
            return tune_batch(compiled, every, self._options, self._backend, runs)

    def _ready(
        self, name: str, columns: Sequence[Any], shared: Mapping[str, Any]
    ) -> tuple[CompiledBatch, list[Sequence[Any]]]:
        """Return the program for these instances, and a column for each of its parameters. Raises
        what the function raises for an instance, and ValueError if there is no instance."""
        given = _columns(columns)
        for outcome in self._run(given, shared):
            if isinstance(outcome, InstanceFailure):
                raise outcome.error
        with self._lock:
            signature = self._signature(len(given), shared)
            if signature.compiled is None or not given[0]:
                raise ValueError(f"{name}: there is no instance")
            every = [*given, *([shared[n]] * len(given[0]) for n in signature.dynamic)]
            return signature.compiled, every

    def __reduce__(self) -> tuple[Any, ...]:
        return Batched, (self._function, self._backend, self._options, self._passes)


def batch(
    function: Callable[..., Any], *, backend: str = AUTO, options: Options | None = None
) -> Batched:
    """Run a function or module, written for one instance, for many instances at once.

    >>> many = stretto.batch(model.eval())
    >>> results = many(trees)  # == [model(tree) for tree in trees]

    An instance is any Python data: dataclasses, tuples, lists, dicts, numbers, strings, None and
    tensors. The function's source is evaluated once. Code that depends on an instance is compiled
    to native code that walks the instances and records which tensor operators each needs; operators
    that do not depend on each other run as one, over all instances (ACRoBat, sections 3 to 5). With
    grad mode on, a batch that reads a tensor that requires grad runs eager, with a StrettoWarning.
    backend: as for `stretto.compile`. Raises TypeError if `function` is not callable; calling the
    result raises CaptureError for what cannot be batched.
    """
    require_backend(backend)
    if not callable(function):
        raise TypeError(
            f"stretto.batch takes a function or an nn.Module, not {type(function).__name__}"
        )
    return Batched(function, backend, options)


def _eager(
    function: Callable[..., Any], number: int, items: tuple[Any, ...], shared: Mapping[str, Any]
) -> Outcome:
    """Return the outcome of instance number `number`, computed by the function itself."""
    try:
        return InstanceResult(function(*items, **shared))
    except Exception as error:
        error.add_note(f"in instance {number}")
        return InstanceFailure(error)


def _columns(columns: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the instances as one sequence per parameter. Raises TypeError for what is not a
    sequence of instances, ValueError for different lengths."""
    if not columns:
        raise TypeError("a batched function takes at least one sequence of instances")
    found: list[Sequence[Any]] = []
    for column in columns:
        if isinstance(column, str | bytes | Mapping):
            raise TypeError(f"a sequence of instances is needed, not a {type(column).__name__}")
        found.append(column if isinstance(column, list | tuple) else list(column))
    lengths = [len(column) for column in found]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the sequences have different lengths: {', '.join(map(str, lengths))}; there is one "
            "item per instance in each"
        )
    return found


def _is_data(value: Any) -> bool:
    """Return True if a shared keyword is dynamic: numbers, so that another number needs no other
    program, and tensors."""
    return type(value) in (bool, int, float) or isinstance(value, torch.Tensor)


def _key(value: Any) -> Hashable:
    return (type(value), value) if scalar_type(value) is not None else ("object", id(value))


def _parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    named = [name for name in parameter_names(function) if not name.startswith("*")]
    return [*named, *(f"argument{n}" for n in range(len(named), count))][:count]
