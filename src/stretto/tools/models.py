"""Loading of models named on the command line: of the zoo, or of the user's file or module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.errors import BuildError
from stretto.machines.machine import HOST, Machine
from stretto.tools.names import UsageError, suggestion

# ---- Models of the zoo, and models of the user.


PACKAGES = ("stretto._zoo", "benchmarks")
"""Packages that contain the zoo: in an installed wheel, and in a checkout."""


@dataclass(frozen=True, slots=True)
class Model:
    """A function or module to compile, and its positional arguments."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def zoo_module(name: str) -> ModuleType:
    """Return a module of the zoo's package, such as `models` or `harness`. Raise UsageError if
    there is no zoo."""
    for package in PACKAGES:
        if _exists(package):
            return importlib.import_module(f"{package}.{name}")
    raise UsageError(
        "the model zoo is not installed: install stretto from a wheel or with `pip install -e .`, "
        "or run from the root of the checkout"
    )


def _exists(package: str) -> bool:
    try:
        return importlib.util.find_spec(f"{package}.models") is not None
    except ModuleNotFoundError:
        return False


def find_model(target: str, *, small: bool = False) -> Model:
    """Return a model of the zoo by name, else `path.py:function` or `module:attribute`.

    Inputs of the latter come from a function `example_inputs()` in the same module. Raises
    UsageError if there is none, or no such model.
    """
    if ":" in target:
        return _own_model(target)
    zoo = zoo_module("models")
    if target not in zoo.ZOO:
        raise UsageError(
            f"unknown model {target!r}{suggestion(target, list(zoo.ZOO))}. For a model of your "
            "own give `path.py:function` or `module:attribute`"
        )
    module, inputs = zoo.build(target, "small" if small else "full")
    return Model(target, module, inputs)


def on_device(model: Model, machine: Machine) -> Model:
    """Return the model with its inputs, and its parameters if it is a module, on the machine's
    device. Raise BuildError if the device is missing."""
    device = require_device(machine)
    if device == HOST:
        return model
    function = model.function
    if isinstance(function, torch.nn.Module):
        function = function.to(device)

    def moved(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    return Model(model.name, function, pytree.tree_map(moved, model.inputs))


def require_device(machine: Machine) -> torch.device:
    """Return the device of a machine. Raise BuildError if it is missing, with what can be done
    without it."""
    try:
        return machine.device()
    except BuildError as error:
        remedies = [text for text in (error.remedy, machine.instead) if text]
        raise BuildError(error.message, remedy="; ".join(remedies)) from error


def _own_model(target: str) -> Model:
    source, _, attribute = target.rpartition(":")
    module = _load(source)
    function = _attribute(module, attribute, source)
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        function = _made(function)
    if not callable(function):
        raise UsageError(f"{target} is a {type(function).__name__}, not a function or module")
    make_inputs = getattr(module, "example_inputs", None)
    if not callable(make_inputs):
        raise UsageError(
            f"{source} has no function `example_inputs()`; write one that returns the tuple of "
            f"arguments to call `{attribute}` with"
        )
    inputs = make_inputs()
    return Model(attribute, function, inputs if isinstance(inputs, tuple) else (inputs,))


def _made(kind: type[torch.nn.Module]) -> torch.nn.Module:
    try:
        return kind().eval()
    except TypeError as error:
        raise UsageError(
            f"{kind.__name__} cannot be made without arguments ({error}); name an instance instead"
        ) from error


def _load(source: str) -> ModuleType:
    if not source.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{source}.".startswith(f"{error.name}."):
                raise
            raise UsageError(f"there is no module {source!r}") from error
        finally:
            sys.path.remove("")
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"there is no file {source}")
    # A prefixed name, so that a user's `random.py` does not replace the standard module.
    name = f"_stretto_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _attribute(module: ModuleType, attribute: str, source: str) -> Any:
    """Return the value of a dotted name in the module."""
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = [name for name in vars(module) if not name.startswith("_")]
            raise UsageError(f"{source} has no {attribute!r}{suggestion(attribute, known)}")
        value = getattr(value, part)
    return value
