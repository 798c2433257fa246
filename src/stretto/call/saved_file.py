"""The format of a file: safetensors, whose metadata have a manifest and the texts of programs.

The manifest is JSON. It has the digest of every text and tensor; the metadata have that of the
manifest. So damage is found before anything is made of the content. Nothing in a file is code of
Python, and nothing is unpickled. A file that somebody has made on purpose has the digests that it
needs: what it says is checked by `restore`.
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
"""Raised by one with each change that older versions cannot read."""

_MANIFEST = "stretto"
_DIGEST = "stretto.digest"
_MOST_DEPTH = 100
"""How deep the manifest may be nested."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds. texts, tensors: by name. The manifest has no digests any more. digests: of
    the tensors, as the file has them, and of those that it leaves out.
    """

    manifest: dict[str, Any]
    texts: Mapping[str, str]
    tensors: Mapping[str, torch.Tensor]
    digests: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Tensors:
    """The tensors of a file by name, each once. named: those of the function itself, which who
    loads the file may have, too."""

    by_name: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    names: dict[int, str] = field(default_factory=dict[int, str])
    named: list[str] = field(default_factory=list[str])

    def of_function(self, tensor: torch.Tensor, wanted: str) -> str:
        """The name of a tensor that the function has by that name."""
        name = self.name(tensor, wanted)
        if name not in self.named:
            self.named.append(name)
        return name

    def name(self, tensor: torch.Tensor, wanted: str) -> str:
        if id(tensor) not in self.names:
            name, number = wanted, 0
            while name in self.by_name:
                number += 1
                name = f"{wanted}_{number}"
            self.names[id(tensor)] = name
            self.by_name[name] = tensor
        return self.names[id(tensor)]


def without_weights(content: Content, names: Iterable[str], made: Collection[str]) -> Content:
    """The same without some tensors, of which the manifest has the dtype, shape and digest, and
    without those that were made of them."""
    left_out: dict[str, Any] = {}
    for name in names:
        tensor = content.tensors[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        left_out[name] = [dtype, list(tensor.shape), digest_of(tensor)]
    gone = {*left_out, *made}
    kept = {name: x for name, x in content.tensors.items() if name not in gone}
    return replace(content, manifest={**content.manifest, "left_out": left_out}, tensors=kept)


def write(path: Path, content: Content) -> None:
    """Writes a file, or leaves the one that is there as it was. Raises SaveError."""
    tensors = _apart(content.tensors)
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


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each with memory of its own, as the format wants them."""
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
    """The content of a file, whose digests are right. Raises LoadError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise LoadError(f"{path} is not a file")
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            manifest = _manifest(path, metadata)
            # Copies: the file may change as long as it is mapped.
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
    shown = reason if len(reason) <= 300 else f"{reason[:300]}..."
    return LoadError(
        f"{path} is not a file of Compiled.save, or it is damaged: {shown}",
        remedy="save the compiled function again",
    )


def _manifest(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
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
    """An upper limit of how deep a text of JSON is nested."""
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
    """Of the content with its dtype and shape."""
    head = _digest(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    memory = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return _digest((head + _digest(memoryview(memory.numpy()))).encode())  # pyright: ignore[reportArgumentType]


# ---- Python values as JSON. A value is itself where JSON has it, else an object with one entry,
# whose name says what it is.


Json = Any


def value_to_json(value: Any, what: str) -> Json:
    """A value that is no container. `what` names it in the error. Raises SaveError for one of
    another class than those that a file can hold."""
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
    """The inverse of `value_to_json`."""
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
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise LoadError(f"{name!r} is no dtype")
    return found


def integers(found: Json) -> list[int]:
    """A list of JSON that has ints only."""
    if not isinstance(found, list) or any(type(item) is not int for item in found):
        raise LoadError(f"{_short(found)} is no list of ints")
    return found  # pyright: ignore[reportUnknownVariableType]


def nested_tuples(found: Json) -> Any:
    """Lists, as tuples were written, as tuples again."""
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
    """A container with items that are JSON already. Classes go by their names."""
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
                "a result is a defaultdict, a deque of limited length or a container with "
                "attributes, which a file cannot hold",
                remedy="return a plain dict or list",
            )
    form = next(name for name, made in _FORMS.items() if isinstance(container, made))
    return {form: [class_name(kind), extra, list(items)]}


def container_from_json(
    found: Json, classes: Mapping[str, type], item: Callable[[Json], Any]
) -> tuple[Container, tuple[Any, ...]] | None:
    """The inverse; None where it is no container. classes: of the caller, by name."""
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
    """Raises LoadError where a class and the form of its objects do not go together."""
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
    """How a file names a class."""
    return _NAMES.get(kind) or f"{kind.__module__}.{kind.__qualname__}"


def _class(name: str, classes: Mapping[str, type]) -> type:
    """The class of that name: one of Python's containers, of torch's named tuples, or of those that
    the caller has passed. None is imported because a file says so."""
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
