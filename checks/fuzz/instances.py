"""Random programs for one instance, run for batches by `stretto.batch`.

A call of such a program is a batch. Its result is what each instance gives or raises, the objects
that results share with each other and with the instances, and the instances afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import stretto
from checks.fuzz.observe import Thing
from checks.fuzz.reference import EndlessError
from checks.fuzz.source import Source, load
from checks.fuzz.trial import Made, Program
from stretto.batching.batched import Batched
from stretto.batching.serving import InstanceCall, InstanceFailure


@dataclass(frozen=True, slots=True)
class Instances(Source):
    """A text with `main` for one instance, and with calls that are batches."""

    def program(self) -> Program:
        return Program(
            self.name, self.make, self.seed, self.machines, goes_on=True, compile=compile_batched
        )

    def make(self, folder: Path) -> Made:
        module = load(self.text, folder)
        return Made(OneByOne(module.main), ((args, {}) for args in module.calls()))


class OneByOne:
    """A function for one instance, called with batches."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *columns: Sequence[Any]) -> Any:
        return shown(
            [_outcome(self.function, args) for args in zip(*columns, strict=True)], columns
        )


def _outcome(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    try:
        return function(*args)
    except EndlessError:
        raise
    except Exception as error:
        return error


def compile_batched(function: Any, **settings: Any) -> Callable[..., Any]:
    """What `stretto.compile` is for functions. With the cache of all programs, since the parts of
    the host that all share take ten seconds to build."""
    options = replace(settings["options"], cache_dir=None)
    many: Batched = stretto.batch(function.function, backend=settings["backend"], options=options)

    def run(*columns: Sequence[Any]) -> Any:
        calls = [InstanceCall(args, {}) for args in zip(*columns, strict=True)]
        outcomes = many.run_calls(calls)
        return shown(
            [o.error if isinstance(o, InstanceFailure) else o.value for o in outcomes], columns
        )

    return run


def shown(results: list[Any], columns: Sequence[Sequence[Any]]) -> Any:
    """The results, exceptions of Python as data, and which of the objects in them are the same.
    An exception of an operator is raised, since it ends a batch."""
    for result in results:
        if isinstance(result, RuntimeError) or "dimension" in str(result) * isinstance(
            result, IndexError
        ):
            raise result
    given = [_raised(r) if isinstance(r, Exception) else r for r in results]
    return given, list(_objects([results, columns], {}))


def _raised(error: Exception) -> Thing:
    """An exception as data. The words for names that are not bound differ between Pythons."""
    message = "" if isinstance(error, NameError) else str(error)
    return Thing(f"{type(error).__name__} {message!r}", ())


def _objects(value: Any, seen: dict[int, int]) -> Iterator[int]:
    """For each object that can be changed, in the order of the data: when it was first met."""
    if isinstance(value, torch.Tensor | int | float | str | type | Exception) or value is None:
        return
    if not isinstance(value, tuple):
        yield seen.setdefault(id(value), len(seen))
        if len(seen) - 1 != seen[id(value)]:
            return
    if isinstance(value, dict):
        items: list[Any] = list(value.values())
    elif isinstance(value, list | tuple):
        items = list(value)
    else:
        items = list(getattr(value, "__dict__", {}).values())
    for item in items:
        yield from _objects(item, seen)
