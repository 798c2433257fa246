"""Files that are damaged, or made to do harm, are refused before anything of them runs."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import stretto
from stretto.call import loaded, saved_file
from stretto.errors import LoadError


class Model(nn.Module):
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor, n: int) -> Any:
        y = self.linear(x)
        for _ in range(n):
            y = torch.tanh(y)
        if x.shape[0] % 2 == 0:
            self.total += y.sum(0)
        return {"y": y, "rest": [y[0], n, None]}, x.shape


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.stretto"
    fast = stretto.compile(Model().eval(), backend="interpreter")
    with torch.no_grad():
        for size in (4, 6, 8):
            fast(torch.randn(size, 3), 2)
    assert len(fast.signatures) == 2  # one of them for many sizes
    fast.save(path)
    return path


@pytest.fixture
def content(original: Path) -> saved_file.Content:
    return saved_file.read(original)


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Instead of building programs, keeps what they are."""
    reached: list[Any] = []

    def build(program: Any, *_: Any) -> Any:
        reached.append(program)
        raise _Reached

    monkeypatch.setattr(loaded, "build", build)
    return reached


class _Reached(BaseException):
    """A file has come through all checks."""


def load(path: Path) -> Any:
    return stretto.load(path, backend="interpreter")


def test_the_original_is_accepted(original: Path) -> None:
    with pytest.raises(_Reached):
        load(original)


# ---- damage ----------------------------------------------------------------------------------
def test_truncated_files(original: Path, tmp_path: Path, nothing_is_built: list[Any]) -> None:
    data = original.read_bytes()
    path = tmp_path / "short"
    for length in [0, 1, 7, 8, 9, *range(10, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(LoadError, match="is not a file of Compiled.save, or it is damaged"):
            load(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(LoadError, match="damaged"):
        load(path)
    assert not nothing_is_built


def test_bits_that_flip(original: Path, tmp_path: Path, nothing_is_built: list[Any]) -> None:
    draw = random.Random(0)
    data = original.read_bytes()
    path = tmp_path / "flipped"
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 1, 5))):
            changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(LoadError):
            load(path)
    assert not nothing_is_built


def test_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with pytest.raises(LoadError, match="No such file"):
        load(path)
    with pytest.raises(LoadError, match="is not a file"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError, match="is not a file"):
        load(tmp_path / "pipe")
    torch.save({"a": torch.ones(2)}, path)
    with pytest.raises(LoadError, match="damaged"):
        load(path)
    path.write_bytes(pickle.dumps(_Harm()))
    with pytest.raises(LoadError, match="damaged"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../outside", "text")
    with pytest.raises(LoadError, match="damaged"):
        load(path)
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(LoadError, match="it has no manifest"):
        load(path)


class _Harm:
    def __reduce__(self) -> Any:
        return os.abort, ()


def test_a_header_that_declares_a_huge_tensor(tmp_path: Path) -> None:
    ends = [0, 1 << 60]
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 58], "data_offsets": ends}}).encode()
    path = tmp_path / "huge"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(LoadError, match="damaged"):
        load(path)
    path.write_bytes((1 << 62).to_bytes(8, "little") + header)
    with pytest.raises(LoadError, match="damaged"):
        load(path)


# ---- intent: all digests are right -----------------------------------------------------------
def refused(content: saved_file.Content, tmp_path: Path, **changes: Any) -> str:
    """The message with which a changed file is refused."""
    whole = {"manifest": content.manifest, "texts": content.texts, "tensors": content.tensors}
    path = tmp_path / "made"
    saved_file.write(path, saved_file.Content(**{**whole, **changes}))
    with pytest.raises(LoadError) as caught:
        load(path)
    return str(caught.value)


def test_another_format(content: saved_file.Content, tmp_path: Path) -> None:
    message = refused(
        content, tmp_path, manifest={**content.manifest, "format": saved_file.FORMAT + 1}
    )
    assert f"has format {saved_file.FORMAT + 1}, and this version of stretto reads" in message


def test_another_device(content: saved_file.Content, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("the device is here")
    manifest = copy.deepcopy(content.manifest)
    manifest["built"]["device"] = "cuda"
    message = refused(content, tmp_path, manifest=manifest)
    assert "saved for a device of type cuda, which is not here" in message
    assert 'stretto.load(path, device="cpu")' in message


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("aten.tanh.default(%", "aten.no_such.default(%", "is not an operator of this torch"),
        ("aten.tanh.default(%", "os.system(%", "which is not one of torch"),
        ("aten.tanh.default(%", "torchvision.nms.default(%", "which is not one of torch"),
        ("aten.tanh.default(%", "aten.tanh_.default(%", "which no program may"),
        ("aten.tanh.default(%", 'aten.from_file.default("/etc/passwd", %', "which no program may"),
        ("return", "%z = aten.zeros.default((9999999999999,)) : f32[9999999999999]\n  return",
         "has a tensor of 39999999999996 bytes"),
        ("f32[2]", "f32[3]", ""),
        ("func @main", "func @other", "has no function @main"),
        ("func @main", "func", ""),
        ("return", "return %undefined,", "is not defined here"),
    ],
)  # fmt: skip
def test_hostile_texts(
    content: saved_file.Content, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    texts = {name: text.replace(old, new, 1) for name, text in content.texts.items()}
    assert texts != content.texts
    assert reason in refused(content, tmp_path, texts=texts)


def test_a_text_that_is_nested_without_end(content: saved_file.Content, tmp_path: Path) -> None:
    for start in (
        "func @main(%x: f32[`" + "-" * 100_000 + "n`])",
        "func @main(" + "list<" * 100_000,
    ):
        texts = dict.fromkeys(content.texts, start)
        assert len(refused(content, tmp_path, texts=texts)) < 1000
    manifest = {**content.manifest, "function": json.loads("[" * 900 + "]" * 900)}
    assert "nested too deeply" in refused(content, tmp_path, manifest=manifest)


def test_weights_of_other_sizes(content: saved_file.Content, tmp_path: Path) -> None:
    for name in content.tensors:
        tensors = {**content.tensors, name: torch.zeros(7, 7)}
        refused(content, tmp_path, tensors=tensors)
        tensors = {key: value for key, value in content.tensors.items() if key != name}
        refused(content, tmp_path, tensors=tensors)
        tensors = {**content.tensors, name: content.tensors[name].double()}
        refused(content, tmp_path, tensors=tensors)


@pytest.mark.parametrize(
    "condition",
    [
        "__import__('os').abort()",
        "().__class__",
        "(lambda: 1)()",
        "[1 for _ in range(10)]",
        "9 ** 9 ** 9 ** 9",
        "math.__loader__",
        "print(1)",
        "x := 1",
        "'a' * 10",
        "math.factorial(10)",
        "1)\nimport os",
        "max(*(1, 2))",
        7,
    ],
)
def test_conditions_are_arithmetic(
    content: saved_file.Content, tmp_path: Path, condition: Any
) -> None:
    manifest = copy.deepcopy(content.manifest)
    (symbolic,) = (s for s in manifest["signatures"] if s["conditions"] is not None)
    symbolic["conditions"].append(condition)
    refused(content, tmp_path, manifest=manifest)


@pytest.mark.parametrize("name", ["math.floor", "int", "math", "lambda", "__class__", "shapes"])
def test_sizes_have_names_of_their_own(
    content: saved_file.Content, tmp_path: Path, name: str
) -> None:
    manifest = copy.deepcopy(content.manifest)
    (symbolic,) = (s for s in manifest["signatures"] if s["conditions"] is not None)
    text = content.texts[symbolic["text"]]
    used = text.partition("%arg0: f32[")[2].partition(",")[0]
    symbolic["conditions"] = []
    texts = {**content.texts, symbolic["text"]: text.replace(used, name)}
    floor = math.floor
    refused(content, tmp_path, manifest=manifest, texts=texts)
    assert math.floor is floor


_STRANGE: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: None,
    lambda draw: draw.randrange(-3, 12),
    lambda draw: 1 << 80,
    lambda draw: 0.5,
    lambda draw: True,
    lambda draw: "text",
    lambda draw: "program.0",
    lambda draw: [],
    lambda draw: {},
    lambda draw: {"result": [draw.randrange(-2, 5), draw.random() < 0.5]},
    lambda draw: {"tensor": ["float32", [-1, 3], "cpu"]},
    lambda draw: {"tensor": ["float32", [4, 3], "nowhere"]},
    lambda draw: {"record": ["builtins.int", ["real"], [{"result": [0, False]}]]},
    lambda draw: {"tuple": ["os.system", [], []]},
    lambda draw: {"choice": [[], []]},
)


def strange(found: Any, draw: random.Random) -> Any:
    """JSON with one part replaced, dropped or repeated."""
    inner: list[Any] = list(found) if isinstance(found, dict) else []
    if isinstance(found, list):
        inner = list(range(len(found)))
    if not inner or draw.random() < 0.15:
        return draw.choice(_STRANGE)(draw)
    made = copy.copy(found)
    place = draw.choice(inner)
    if draw.random() < 0.15:
        made.pop(place)
    elif isinstance(made, list) and draw.random() < 0.15:
        made.append(made[place])
    else:
        made[place] = strange(made[place], draw)
    return made


def test_manifests_of_any_form(content: saved_file.Content, tmp_path: Path) -> None:
    """A changed manifest is a LoadError, or as good as the original; never another error."""
    draw = random.Random(1)
    path = tmp_path / "made"
    outcomes: list[type] = []
    for _ in range(300):
        manifest = {**content.manifest, "signatures": strange(content.manifest["signatures"], draw)}
        saved_file.write(path, saved_file.Content(manifest, content.texts, content.tensors))
        with pytest.raises((LoadError, _Reached)) as caught:
            load(path)
        outcomes.append(caught.type)
    assert outcomes.count(LoadError) > 150


def test_texts_of_any_form(content: saved_file.Content, tmp_path: Path) -> None:
    draw = random.Random(2)
    path = tmp_path / "made"
    for _ in range(150):
        name = draw.choice(list(content.texts))
        text = content.texts[name]
        start = draw.randrange(len(text))
        end = start + draw.randrange(1, 12)
        piece = draw.choice(("", "%0", "0", "[", "-1", text[start:end] * 2, "f32[]", "\0", "é"))
        texts = {**content.texts, name: text[:start] + piece + text[end:]}
        saved_file.write(path, saved_file.Content(content.manifest, texts, content.tensors))
        with pytest.raises((LoadError, _Reached)):
            load(path)
