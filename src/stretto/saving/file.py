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
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from stretto.errors import LoadError, SaveError

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
