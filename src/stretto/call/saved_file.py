"""The format of a saved file: safetensors, with a manifest and the texts of programs as metadata.

The manifest is JSON. It has the digest of every text and tensor; the metadata have the digest of
the manifest. So damage is found before the content is used. Nothing in a file is Python code, and
nothing is unpickled. A maliciously crafted file has correct digests: `restore` checks what is in
it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from stretto.errors import LoadError, SaveError
from stretto.frontends.python.results.output import (
    CollectionOf,
    Container,
    DictOf,
    RecordOf,
    SubclassOf,
    TupleOf,
)

FORMAT = 3
"""Version of the format, increased by one with each change that older versions cannot read."""

_MANIFEST = "stretto"
_DIGEST = "stretto.digest"
_MOST_DEPTH = 100
"""Maximum nesting depth of the manifest."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file. texts, tensors: by name. manifest: without its digests. digests:
    those of the tensors that were read."""

    manifest: dict[str, Any]
    texts: Mapping[str, str]
    tensors: Mapping[str, torch.Tensor]
    digests: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class SavedTensors:
    """The tensors of a file by name, each once. named: names of the function's own tensors, which
    the caller of `load` may have too."""

    by_name: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    names: dict[int, str] = field(default_factory=dict[int, str])
    named: list[str] = field(default_factory=list[str])

    def of_function(self, tensor: torch.Tensor, wanted: str) -> str:
        """Return the name of a tensor that the function itself has, and note it in `named`."""
        name = self.name(tensor, wanted)
        if name not in self.named:
            self.named.append(name)
        return name

    def name(self, tensor: torch.Tensor, wanted: str) -> str:
        """Return the name of a tensor; add it, as `wanted` with a number if that is taken."""
        if id(tensor) not in self.names:
            name, number = wanted, 0
            while name in self.by_name:
                number += 1
                name = f"{wanted}_{number}"
            self.names[id(tensor)] = name
            self.by_name[name] = tensor
        return self.names[id(tensor)]


def without_weights(content: Content, names: Iterable[str], made: Collection[str]) -> Content:
    """Return the content without the tensors `names`, whose dtype, shape and digest the manifest
    gets, and without the tensors `made`, which were computed from them."""
    left_out: dict[str, Any] = {}
    for name in names:
        tensor = content.tensors[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        left_out[name] = [dtype, list(tensor.shape), digest_of(tensor)]
    gone = {*left_out, *made}
    kept = {name: x for name, x in content.tensors.items() if name not in gone}
    return replace(content, manifest={**content.manifest, "left_out": left_out}, tensors=kept)


def write(path: Path, content: Content) -> None:
    """Write a file; if that fails, an existing file stays as it was. Raises SaveError."""
    tensors = _with_separate_memory(content.tensors)
    digests = {
        "texts": {name: _digest(text.encode()) for name, text in content.texts.items()},
        "tensors": {name: digest_of(tensor) for name, tensor in tensors.items()},
    }
    text = json.dumps({"format": FORMAT, "digests": digests, **content.manifest})
    metadata = {_MANIFEST: text, _DIGEST: _digest(text.encode()), **content.texts}
    try:
        made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            save_file(tensors, made, metadata)
            os.replace(made, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(made)
    except OSError as error:
        raise SaveError(f"{path} cannot be written: {error.strerror or error}") from error


def _with_separate_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, each with separate memory, as the format requires."""
    made: dict[str, torch.Tensor] = {}
    used: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().resolve_neg().contiguous()
        memory = plain.untyped_storage()
        if memory.data_ptr() in used or memory.nbytes() != plain.nbytes:
            plain = plain.clone()
        used.add(plain.untyped_storage().data_ptr())
        made[name] = plain
    return made


def read(path: Path) -> Content:
    """Read a file and check its digests. Raises LoadError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise LoadError(f"{path} is not a file")
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            manifest = _manifest(path, metadata)
            # Copied, since the file may change while it is mapped.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise damaged(path, str(error)) from error
    texts = {name: text for name, text in metadata.items() if name not in (_MANIFEST, _DIGEST)}
    digests = manifest.pop("digests", None)
    found = {
        "texts": {name: _digest(text.encode()) for name, text in texts.items()},
        "tensors": {name: digest_of(tensor) for name, tensor in tensors.items()},
    }
    if digests != found:
        raise damaged(path, "a digest is not that of the content")
    return Content(manifest, texts, tensors, found["tensors"])


def damaged(path: Path, reason: str) -> LoadError:
    """Return the error for a file that is damaged or was not written by `Compiled.save`."""
    shown = reason if len(reason) <= 300 else f"{reason[:300]}..."
    return LoadError(
        f"{path} is not a file of Compiled.save, or it is damaged: {shown}",
        remedy="save the compiled function again",
    )


def _manifest(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """Parse the manifest and check its digest, depth and format. Raises LoadError."""
    text = metadata.get(_MANIFEST)
    if text is None:
        raise damaged(path, "it has no manifest")
    if _digest(text.encode()) != metadata.get(_DIGEST):
        raise damaged(path, "the digest of its manifest is not right")
    if _depth(text) > _MOST_DEPTH:
        raise damaged(path, "its manifest is nested too deeply")
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise damaged(path, f"its manifest is not JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise damaged(path, "its manifest is not an object of JSON")
    version: Any = manifest.pop("format", None)  # pyright: ignore[reportUnknownVariableType]
    if version != FORMAT:
        raise LoadError(
            f"{path} has format {version}, and this version of stretto reads format {FORMAT}",
            remedy="save it again with this version of stretto, or load it with the one that "
            "has written it",
        )
    return manifest  # pyright: ignore[reportUnknownVariableType]


def _depth(text: str) -> int:
    """Return an upper bound of the nesting depth of a JSON text."""
    depth = most = 0
    for sign in text:
        if sign in "[{":
            depth += 1
            most = max(most, depth)
        elif sign in "]}":
            depth -= 1
    return most


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_of(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's content, dtype and shape."""
    head = _digest(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    memory = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return _digest((head + _digest(memoryview(memory.numpy()))).encode())  # pyright: ignore[reportArgumentType]


# ---- Python values as JSON. A value that JSON has is itself, any other one an object with one
# entry whose name is its type.


Json = Any


def value_to_json(value: Any, what: str) -> Json:
    """Convert a value that is no container. `what` names it in the error. Raises SaveError for a
    class that a file cannot hold."""
    match value:
        case None | bool() | int() | str() if type(value) in (type(None), bool, int, str):
            return value
        case float() if type(value) is float:
            return {"float": value.hex()}
        case complex():
            return {"complex": [value.real.hex(), value.imag.hex()]}
        case slice():
            return {
                "slice": [value_to_json(x, what) for x in (value.start, value.stop, value.step)]
            }
        case range():
            return {"range": [value.start, value.stop, value.step]}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": str(value)}
        case torch.Size():
            return {"size": list(value)}
        case tuple() if type(value) is tuple:
            return {"values": [value_to_json(item, what) for item in value]}
        case _:
            kind = type(value)
            raise SaveError(
                f"{what} is of class {class_name(kind)}, which a file cannot hold",
                remedy="use tensors, numbers, strings, None, and tuples, lists and dicts of these",
            )


def value_from_json(found: Json) -> Any:
    """Return the value that `value_to_json` converted. Raises LoadError for anything else."""
    match found:
        case None | bool() | int() | str():
            return found
        case {"float": str(text)}:
            return float.fromhex(text)
        case {"complex": [str(real), str(imaginary)]}:
            return complex(float.fromhex(real), float.fromhex(imaginary))
        case {"slice": [start, stop, step]}:
            return slice(*map(value_from_json, (start, stop, step)))
        case {"range": [int(start), int(stop), int(step)]}:
            return range(start, stop, step)
        case {"dtype": str(name)}:
            return dtype_named(name)
        case {"device": str(name)}:
            return torch.device(name)
        case {"values": list(items)}:
            return tuple(map(value_from_json, items))
        case {"size": list(sizes)}:
            return torch.Size(integers(sizes))
        case _:
            raise LoadError(f"{_short(found)} is no value")


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype of this name. Raises LoadError if there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise LoadError(f"{name!r} is no dtype")
    return found


def integers(found: Json) -> list[int]:
    """Return `found` if it is a list of ints; raise LoadError if not."""
    if not isinstance(found, list) or any(type(item) is not int for item in found):
        raise LoadError(f"{_short(found)} is no list of ints")
    return found  # pyright: ignore[reportUnknownVariableType]


def nested_tuples(found: Json) -> Any:
    """Convert nested lists to the tuples that JSON wrote as lists."""
    return tuple(map(nested_tuples, found)) if isinstance(found, list) else found  # pyright: ignore[reportUnknownArgumentType]


def _short(found: Json) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- containers ------------------------------------------------------------------------------
_PLAIN: dict[str, type] = {
    "tuple": tuple, "list": list, "set": set, "frozenset": frozenset, "deque": deque,
    "dict": dict, "OrderedDict": OrderedDict, "Size": torch.Size, "range": range, "slice": slice,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _PLAIN.items()}
_FORMS: dict[str, type] = {
    "tuple": TupleOf, "collection": CollectionOf, "dict": DictOf, "record": RecordOf,
}  # fmt: skip


def container_to_json(container: Any, items: Sequence[Json]) -> Json:
    """Convert a container whose items are JSON already. Its class is written by name."""
    match container:
        case TupleOf(kind):
            extra: list[Any] = []
        case CollectionOf(kind, None):
            extra = []
        case DictOf(kind, keys, None):
            extra = [value_to_json(key, "a key of a dict") for key in keys]
        case RecordOf(kind, names):
            extra = list(names)
        case _:
            raise SaveError(
                "a result is a function, a defaultdict, a deque of limited length or a container "
                "with attributes, which a file cannot hold",
                remedy="return a plain dict or list",
            )
    form = next(name for name, made in _FORMS.items() if isinstance(container, made))
    return {form: [class_name(kind), extra, list(items)]}


def container_from_json(
    found: Json, classes: Mapping[str, type], item: Callable[[Json], Any]
) -> tuple[Container, tuple[Any, ...]] | None:
    """Return a container and its items, the inverse of `container_to_json`; None if it is no
    container. classes: allowed by the caller, by name."""
    match found:
        case {"tuple": [str(name), [], list(items)]}:
            made: Container = TupleOf(_class(name, classes))
        case {"collection": [str(name), [], list(items)]}:
            made = CollectionOf(_class(name, classes))
        case {"dict": [str(name), list(keys), list(items)]}:
            made = DictOf(_class(name, classes), tuple(map(value_from_json, keys)))
        case {"record": [str(name), list(names), list(items)]}:
            made = RecordOf(_class(name, classes), tuple(map(str, names)))
        case _:
            return None
    children = tuple(map(item, items))
    _check_form(made, len(children))
    return made, children


def _check_form(made: Container, count: int) -> None:
    """Raise LoadError if a class does not have the form of container that the file gives it."""
    kind = made.kind
    match made:
        case TupleOf():
            is_right = issubclass(kind, tuple) or (kind in (range, slice) and count == 3)
        case CollectionOf():
            is_right = kind in (list, set, frozenset, deque)
        case DictOf():
            is_right = issubclass(kind, dict) and len(made.keys) == count
        case RecordOf():
            is_right = kind not in _NAMES and len(made.names) == count
        case SubclassOf():
            is_right = False
    if not is_right:
        raise LoadError(f"a result of class {kind.__name__} has another form than the file says")


def class_name(kind: type) -> str:
    """Return the file's name of a class."""
    return _NAMES.get(kind) or f"{kind.__module__}.{kind.__qualname__}"


def _class(name: str, classes: Mapping[str, type]) -> type:
    """Return the class of that name: a container of Python, a named tuple of torch, or a class
    that the caller passed. No class is imported on behalf of a file."""
    if name in _PLAIN:
        return _PLAIN[name]
    place, _, last = name.rpartition(".")
    if place == "torch.return_types":
        found = vars(torch.return_types).get(last)
        if isinstance(found, type) and issubclass(found, tuple):
            return found
    if name not in classes:
        raise LoadError(
            f"the results are of class {name}, which stretto.load does not import by itself",
            remedy=f"pass it: stretto.load(path, classes=[{name.rpartition('.')[2]}])",
        )
    return classes[name]
