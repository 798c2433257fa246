"""`stretto.load`: a function whose programs come from a file."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.call.compiler import AUTO, build, choose_machine, require_backend
from stretto.call.eager import warn
from stretto.call.entry import Entry
from stretto.call.restore import Signature, Supply, TensorForm, restore, version_of
from stretto.call.saved_code import CodeUse, check_program, names_of_code, options_of, unpack
from stretto.call.saved_file import (
    Content,
    class_name,
    damaged,
    digest_of,
    dtype_named,
    integers,
    read,
    write,
)
from stretto.call.signatures import CallForm, Key, argument_name
from stretto.errors import BuildError, LoadError, OtherProgram, RunError, StrettoError
from stretto.frontends.python import Captured
from stretto.frontends.python.interpreter.settled import is_settled
from stretto.frontends.python.results.inputs import key_of
from stretto.frontends.python.tracing.admission import active_transformation, foreign_input
from stretto.locks import ForkSafeLock
from stretto.machines.machine import Machine, Stages
from stretto.options import Options
from stretto.runtime.interpreter_check import Checker
from stretto.text import counted, explanation

# ---- The error for arguments that fit no signature of a file: it names the differences.


def mismatch(
    function: str,
    parameters: Sequence[str],
    signatures: Sequence[Signature],
    arguments: Any,
    key: Key,
) -> RunError:
    """Return the error for a call that fits no signature. It describes the signature with the
    fewest differences; on a tie, one for many sizes comes first."""
    ordered = sorted(signatures, key=lambda signature: signature.fits is None)
    found = [_differences(signature, arguments, parameters, key) for signature in ordered]
    shown = list(dict.fromkeys(min(found, key=len)))[:4]
    others = f" ({len(signatures)} signatures; this is about the nearest)" if len(found) > 1 else ""
    return RunError(
        f"{function} was not saved for these arguments{others}: {'; '.join(shown)}",
        remedy="pass such arguments, or call the compiled function with these before you save it",
    )


def _differences(
    signature: Signature, arguments: Any, parameters: Sequence[str], key: Key
) -> list[str]:
    """Return how a call differs from a signature, one text per argument. A difference in structure
    is a single text, repeated so that it outweighs all others."""
    given, spec = pytree.tree_flatten_with_path(arguments)
    expected, wanted = pytree.tree_flatten(signature.arguments)
    if spec != wanted:
        shown = (_shown(*arguments), _shown(*signature.arguments))
        text = f"the arguments are ({shown[0]}), and it takes ({shown[1]})"
        return [text] * (1 + max(len(given), len(expected)))
    found: list[str] = []
    pairs = zip(key[1:], signature.key[1:], strict=True)
    for (path, leaf), form, (part, other) in zip(given, expected, pairs, strict=True):
        if part == other or (signature.fits is not None and _fits_but_sizes(leaf, form)):
            continue
        found.append(
            f"'{argument_name(path, parameters)}' is {_leaf(leaf)}, and it takes {_leaf(form)}"
        )
    if not found and signature.fits is not None and key != signature.key:
        found.append(_about_sizes(signature))
    text = "their shared memory or strides differ from those it was compiled with"
    return found or [text]


def _fits_but_sizes(leaf: Any, form: Any) -> bool:
    """Return True if an argument has the rank, dtype and device of its form, or if both
    are ints."""
    if isinstance(leaf, torch.Tensor) and isinstance(form, TensorForm):
        rank = len(form.shape)
        return (leaf.dim(), leaf.dtype, leaf.device) == (rank, form.dtype, form.device)
    return type(leaf) is int and type(form) is int


def _about_sizes(signature: Signature) -> str:
    """Describe the sizes that a signature takes."""
    sizes = signature.captured.sizes
    assert sizes is not None
    shapes = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in sizes.shapes)
    ranges = [symbol.declaration for symbol in sizes.symbols]
    rules = " and ".join([*ranges, *(condition.text for condition in sizes.conditions)])
    return f"the sizes are others than it takes: {shapes} with {rules}"


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    shown = [_structure(item) for item in args]
    return ", ".join([*shown, *(f"{name}={_structure(item)}" for name, item in kwargs.items())])


def _structure(value: Any) -> str:
    match value:
        case tuple() | list():
            return f"{type(value).__name__} of {len(value)}"  # pyright: ignore[reportUnknownArgumentType]
        case dict():
            return f"dict of {', '.join(map(str, value))}"  # pyright: ignore[reportUnknownArgumentType]
        case torch.Tensor() | TensorForm():
            return "tensor"
        case _:
            return type(value).__name__


def _leaf(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = TensorForm(tuple(value.shape), value.dtype, value.device)
    return str(value) if isinstance(value, TensorForm) else repr(value)


_WRONG = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, RecursionError,
    OverflowError, MemoryError, AssertionError, StrettoError,
)  # fmt: skip
"""Errors that reading a manifest may raise if `save` did not write it."""


_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def load(
    path: str | Path,
    *,
    backend: str = AUTO,
    device: str | torch.device | None = None,
    options: Options | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    machine_code: bool = True,
    classes: Iterable[type] = (),
    namespaces: Iterable[str] = (),
) -> Loaded:
    """Load a function that `Compiled.save` wrote to a file, ready to be called.

    The source that it was compiled from is not needed. Programs compiled for a GPU run the
    machine code of the file: nothing is captured, scheduled or compiled again, and Triton
    is not needed. If that code does not fit, a StrettoWarning gives the reason, and the
    programs are built here from their texts, like all others; programs that this machine
    has built before come from the build cache.

    backend: as for `stretto.compile`. options: as for `stretto.compile`. If they differ from
        those that the file was saved with in a way that code depends on, the programs are
        built again. None uses the saved options where code of the file is used. device:
        where its tensors are to be; None: the device that it was saved for.
    tensors: parameters and buffers by name, as in `model.state_dict()`: those that the file
        was saved without, and others to replace those that it has. They are not copied if
        they are on the device already.
    machine_code: False builds all programs from their texts, which are verified. Machine
        code cannot be verified, so use it only from files that you trust.
    classes: classes of results that are no plain containers, such as a dataclass.
        namespaces: libraries of operators to allow besides torch's own, for files that you
        trust.

    Raises LoadError for a file that is damaged, of another format, or refused, and for
    tensors that are missing or of another shape or dtype; nothing of the file has run by
    then. A call raises RunError for arguments that fit no signature of the file.
    """
    require_backend(backend)
    content = read(Path(path))
    spaces = tuple(namespaces)
    with _naming(Path(path)):
        place = _device_of(content.manifest) if device is None else _with_index(device)
        _check_labels(content.manifest)
        content = dataclasses.replace(content, tensors=_tensors(content, tensors or {}, place))
    machine = choose_machine(backend, [torch.empty(0, device=place)])
    with _naming(Path(path)):
        use = CodeUse(
            machine.packed_by, options, content.manifest["built"]["options"], machine_code
        )
        known = {class_name(kind): kind for kind in classes}
        supply = Supply(content.texts, content.tensors, known, spaces, place, use)
        signatures = [restore(item, supply) for item in content.manifest["signatures"]]
    return Loaded(content, signatures, machine, use, place, spaces)


@contextmanager
def _naming(path: Path) -> Generator[None]:
    """Raise LoadError, with the file's name, for any error in its manifest."""
    try:
        yield
    except LoadError as error:
        raise error if error.remedy else damaged(path, error.message) from error
    except _WRONG as error:
        raise damaged(path, str(error).partition("\n")[0]) from error


def _tensors(
    content: Content, given: Mapping[str, torch.Tensor], place: torch.device
) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, on the device. Machine code stays where it is."""
    signatures: list[Any] = content.manifest["signatures"]
    wanted = {name: (x.dtype, x.shape) for name, x in content.tensors.items()}
    for name, (dtype, shape, _) in content.manifest.get("left_out", {}).items():
        wanted[name] = (dtype_named(dtype), torch.Size(integers(shape)))
    missing = [name for name in wanted if name not in content.tensors and name not in given]
    if missing:
        raise LoadError(
            f"the file was saved without its weights, and `tensors` lacks {', '.join(missing[:5])}",
            remedy="give those of the model: stretto.load(path, tensors=model.state_dict())",
        )
    binaries = names_of_code(content.manifest, binaries=True)
    of_code = binaries | names_of_code(content.manifest, made=True)
    for name, digest in (pair for item in signatures for pair in item["read"].items()):
        if name in given and digest_of(given[name]) != digest:
            raise LoadError(
                f"the function has read '{name}' while it was captured, and the one that is given "
                "has another content",
                remedy="compile and save the model with these weights",
            )
    found: dict[str, torch.Tensor] = {}
    for name, (dtype, shape) in wanted.items():
        tensor = content.tensors.get(name)
        if name in given and name not in of_code:
            tensor = given[name]
            if (tensor.dtype, tensor.shape) != (dtype, shape):
                raise LoadError(
                    f"the tensor '{name}' is {tensor.dtype} of shape {list(tensor.shape)}, and the "
                    f"function has {dtype} of shape {list(shape)}",
                    remedy="give the weights of the model that was saved",
                )
        if tensor is not None:
            with torch.no_grad():
                found[name] = tensor if name in binaries else tensor.to(place)
    return found


def _with_index(device: str | torch.device) -> torch.device:
    """Return the device as tensors name it: for "cuda", the current one with its index."""
    return torch.empty(0, device=device).device


def _check_labels(manifest: Mapping[str, Any]) -> None:
    """Raise LoadError unless everything of a file that messages and `explain()` show is text."""
    built = manifest["built"]
    shown = [manifest["function"], *(built[name] for name in ("stretto", "torch", "machine"))]
    lists = (manifest["parameters"], manifest["signatures"])
    if not all(isinstance(item, list) for item in lists) or not manifest["signatures"]:
        raise LoadError("it has no signatures")
    if any(type(item) is not str for item in (*shown, *manifest["parameters"])):
        raise LoadError("its function, parameters or versions are not text")


def _device_of(manifest: Mapping[str, Any]) -> torch.device:
    """Return the device that a file was saved for. Raises LoadError if it is not here."""
    found = torch.device(manifest["built"]["device"])
    if not torch.get_device_module(found).is_available():
        raise LoadError(
            f"the file was saved for a device of type {found.type}, which is not here",
            remedy='load it for another one: stretto.load(path, device="cpu")',
        )
    return _with_index(found)


class Loaded:
    """A function whose programs come from a file. `stretto.load` creates it."""

    def __init__(
        self,
        content: Content,
        signatures: Sequence[Signature],
        machine: Machine,
        use: CodeUse,
        place: torch.device,
        namespaces: tuple[str, ...],
    ) -> None:
        self._content = content
        self._signatures = tuple(signatures)
        self._machine, self._use, self._place = machine, use, place
        self._options = use.options or Options()
        self._namespaces = namespaces
        self._lock = ForkSafeLock()
        machine.require_ready()
        self._entries = list(map(self._built, self._signatures))
        self._fixed: dict[Any, list[int]] = {}
        self._families: dict[Any, list[int]] = {}
        self._plain: dict[Any, Entry] = {}
        """Programs of fixed sizes for calls with tensors only, by their shapes, dtypes, devices."""
        for number, signature in enumerate(signatures):
            if signature.fits is None:
                self._fixed.setdefault(signature.key, []).append(number)
            else:
                self._families.setdefault(signature.form.family, []).append(number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_dynamo_compiling():
            return _outside_of_graphs(self, args, kwargs)
        why = active_transformation()
        if why is not None:
            raise _refusal(f"{why}, which needs the original function")
        if not kwargs and set(map(type, args)) == _TENSORS_ONLY:
            entry = self._plain.get(tuple([(a.shape, a.dtype, a.device) for a in args]))
            if entry is not None and entry.is_current():
                return _run(entry, args)
        if kwargs:
            kwargs = {name: kwargs[name] for name in sorted(kwargs)}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        why = foreign_input(leaves)
        if why is not None:
            raise _refusal(why)
        tensors: Sequence[torch.Tensor] = [x for x in leaves if isinstance(x, torch.Tensor)]
        key = (spec, *map(key_of, leaves))
        refuted: OtherProgram | None = None
        for number in self._fixed.get(key, ()):
            entry = self._current(number)
            takes_any = not entry.checks_inputs
            tensors_only = not kwargs and len(leaves) == len(args) == len(tensors)
            if takes_any and tensors_only and not is_settled(entry.captured.program):
                self._plain[key[1:]] = entry
            if takes_any or entry.variant(tensors) == entry.compiled_variant:
                try:
                    return _run(entry, tensors)
                except OtherProgram as error:
                    refuted = error
        if self._families:
            form = CallForm.of(key)
            for number in self._families.get(form.family, ()):
                entry = self._current(number)
                if entry.fits_sizes is None or not entry.fits_sizes(form.shapes, form.ints, ()):
                    continue
                given = entry.with_ints(tensors, form.ints)
                if not entry.checks_inputs or entry.variant(given) == entry.compiled_variant:
                    try:
                        return _run(entry, given)
                    except OtherProgram as error:
                        refuted = error
        if refuted is not None:
            raise refuted
        parameters: list[str] = self._content.manifest["parameters"]
        raise mismatch(self.__name__, parameters, self._signatures, (args, kwargs), key)

    @property
    def __name__(self) -> str:
        return self._content.manifest["function"]

    def __repr__(self) -> str:
        return f"<stretto.load of {self.__name__}: {counted(len(self._signatures), 'signature')}>"

    @property
    def built_with(self) -> Mapping[str, Any]:
        """The versions, the machine and the options that the file was written with."""
        return self._content.manifest["built"]

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Parameters, buffers and other tensors of the function, by name. Calls change buffers in
        place; the next call sees your changes."""
        hidden = names_of_code(self._content.manifest, binaries=True, made=True)
        return {name: x for name, x in self._content.tensors.items() if name not in hidden}

    @property
    def signatures(self) -> tuple[Entry, ...]:
        """The programs of the file."""
        return tuple(self._entries)

    def save(self, path: str | Path) -> None:
        """Write the function to a file, with its tensors as they are now."""
        write(Path(path), self._content)

    def synchronize(self) -> None:
        """Wait until all calls on GPUs have ended."""
        for entry in self._entries:
            entry.executable.synchronize()

    def explain(self) -> str:
        """Report what was fused, scheduled and built, per signature."""
        from stretto.tools.explain import signature_sections

        built, parameters = self.built_with, self._content.manifest["parameters"]
        lines = (
            f"{self.__name__}: loaded, {counted(len(self._entries), 'signature')}",
            f"saved by stretto {built['stretto']}, torch {built['torch']}, for {built['machine']}",
        )
        return explanation((*lines, *signature_sections(self._entries, parameters)))

    # ---- programs ----------------------------------------------------------------------------
    def _current(self, number: int) -> Entry:
        """Return a program; build it again if a tensor whose content was computed into it has
        changed."""
        entry = self._entries[number]
        if entry.is_current():
            return entry
        with self._lock:
            if not self._entries[number].is_current():
                self._entries[number] = self._built(self._signatures[number])
            return self._entries[number]

    def _built(self, signature: Signature) -> Entry:
        """Build the entry of a signature: from the file's code if possible, else from its text."""
        start = time.perf_counter()
        captured = _renewed(signature.captured)
        stages = self._unpacked(signature, captured)
        if stages is None:
            stages = build(captured.program, self._machine, self._options, self._place)
        assert stages.executable is not None
        seconds = time.perf_counter() - start
        entry = Entry(
            signature.key, captured, stages.executable, stages, seconds, signature.arguments
        )
        entry.int_count = len(signature.form.ints)
        entry.fits_sizes = signature.fits
        entry.compiled_variant = signature.variant
        if self._options.check and not self._machine.is_oracle:
            entry.checker = Checker(captured.program, self._options.max_depth)
        return entry

    def _unpacked(self, signature: Signature, captured: Captured) -> Stages | None:
        """Return the program made of the file's code; None if the code is not used. If it turns
        out not to fit this machine, a warning gives the reason."""
        found, options = signature.found, self._use.options or options_of(self._use.saved)
        if not self._use.holds(found["code"]):
            return None
        try:
            return unpack(
                found["code"], found, self._content, captured, self._machine, options, self._place,
                self._namespaces,
            )  # fmt: skip
        except BuildError as error:
            warn(
                f"{self.__name__} is built again, since the code of its file cannot be used: "
                f"{error.message}"
            )
        check_program(captured.program, self._namespaces)
        return None


def _renewed(captured: Captured) -> Captured:
    """Return the capture with the current versions and addresses of its tensors."""
    sources = tuple(
        dataclasses.replace(s, version=version_of(s.tensor), address=s.tensor.data_ptr())
        for s in captured.constants
    )
    return dataclasses.replace(captured, constants=sources)


_TENSORS_ONLY = {torch.Tensor}


def _run(entry: Entry, tensors: Sequence[torch.Tensor]) -> Any:
    """Run a program. Raises RunError if gradients are wanted: there is no original function to run
    eager."""
    if torch.is_grad_enabled() and entry.differentiated(tensors) is not None:
        raise _refusal(
            "an input or a tensor of the file requires grad, and programs compute no gradients"
        )
    return entry(tensors)


def _call(loaded: Loaded, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return loaded(*args, **kwargs)


_outside_of_graphs: Any = torch.compiler.disable(_call)
"""Calls a loaded function under `torch.compile`; the graph breaks there."""


def _refusal(why: str) -> RunError:
    """Return the error for a call that only the original function could serve."""
    return RunError(
        f"a function that was loaded from a file cannot be called: {why}",
        remedy="call it under torch.no_grad() with plain tensors, outside of transformations; "
        "where it must be eager, use the model itself",
    )
