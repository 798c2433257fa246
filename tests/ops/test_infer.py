"""Result types come from torch itself."""

import pytest
import torch

from stretto.errors import VerifyError
from stretto.ir.core import Value
from stretto.ir.text import parse_type
from stretto.ops.infer import infer, resolve, tensor_op


def value(type: str) -> Value:
    return Value(parse_type(type))


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        ("aten.mm.default", ("f32[2, 3]", "f32[3, 4]"), "f32[2, 4]"),
        ("aten.add.Tensor", ("f16[2, 3]", "f32[]"), "f16[2, 3]"),
        ("aten.add.Tensor", ("f16[2, 3]", "f32[3]"), "f32[2, 3]"),
        ("aten.add.Scalar", ("i64[2]", 1), "i64[2]"),
        ("aten.add.Scalar", ("i64[2]", 1.0), "f32[2]"),
        ("aten.add.Scalar", ("i64[2]", True), "i64[2]"),
        ("aten.add.Scalar", ("i64[2]", "f32[]"), "f32[2]"),
        ("aten.add.Scalar", ("i64[2]", "i64[]"), "i64[2]"),
        ("aten.gt.Scalar", ("bf16[2]", 0), "bool[2]"),
        ("aten.select.int", ("f32[2, 3]", 0, "i64[]"), "f32[3]"),
        ("aten.select.int", ("f32[1, 3]", 0, "i64[]"), "f32[3]"),
        ("aten.topk.default", ("f32[5]", 2), "f32[2], i64[2]"),
        ("aten.split.Tensor", ("f32[5]", 2), "f32[2], f32[2], f32[1]"),
        ("aten.index.Tensor", ("f32[5, 2]", (None, "i64[7]")), "f32[5, 7]"),
        ("stretto.narrow", ("f32[5, 3]", 0, "i64[]", 2), "f32[2, 3]"),
        ("stretto.narrow_scatter", ("f32[5, 3]", "f32[2, 3]", 0, "i64[]"), "f32[5, 3]"),
        ("aten.mm.default", ("f32[s0, 3]", "f32[3, 4]"), "f32[s0, 4]"),
        ("aten.cat.default", (("f32[s0, 3]", "f32[s1, 3]", "f32[s0, 3]"),), "f32[2*s0 + s1, 3]"),
        ("aten.slice.Tensor", ("f32[s0]", 0, 1, 2**63 - 1), "f32[s0 - 1]"),
        ("aten.view.default", ("f32[s0, 4]", (-1,)), "f32[4*s0]"),
        ("aten.cat.default", (("f32[2*s0]", "f32[s0]"),), "f32[3*s0]"),
        ("aten.add.Tensor", ("f32[s0, 3]", "f32[1, 3]"), "f32[s0, 3]"),
        ("aten.bmm.default", ("f32[2, s0, 3]", "f32[2, 3, s0]"), "f32[2, s0, s0]"),
    ],
)
def test_types(target: str, args: tuple[object, ...], expected: str) -> None:
    def build(item: object) -> object:
        if isinstance(item, tuple):
            return tuple(build(part) for part in item)
        return value(item) if isinstance(item, str) else item

    found = infer(target, tuple(build(item) for item in args))  # type: ignore
    assert ", ".join(map(str, found)) == expected


@pytest.mark.parametrize("names", [("s0", "s1"), ("s1", "s0"), ("z", "a"), ("s1", "n")])
@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        ("aten.cat.default", (("f32[X, 3]", "f32[Y, 3]", "f32[X, 3]"),), "f32[Y + 2*X, 3]"),
        ("aten.view.default", ("f32[X, 4, Y]", (-1, 2)), "f32[2*X*Y, 2]"),
        ("aten.mm.default", ("f32[Y, X]", "f32[X, 7]"), "f32[Y, 7]"),
        ("aten.constant_pad_nd.default", ("f32[Y, X]", (1, 2)), "f32[Y, X + 3]"),
    ],
)
def test_symbols_are_only_names(
    target: str, args: tuple[object, ...], expected: str, names: tuple[str, str]
) -> None:
    """Types are found for other symbols and renamed; sums and products are in order again."""

    def build(item: object) -> object:
        if isinstance(item, tuple):
            return tuple(build(part) for part in item)
        return value(named(item)) if isinstance(item, str) else item

    def named(text: str) -> str:
        return text.replace("X", names[0]).replace("Y", names[1])

    found = infer(target, tuple(build(item) for item in args))  # type: ignore
    assert list(found) == [parse_type(named(expected))]


def test_a_refusal_has_the_names_of_its_symbols() -> None:
    with pytest.raises(VerifyError, match="of size rows"):
        infer("aten.mm.default", (value("f32[rows, 3]"), value("f32[4, rows]")))


@pytest.mark.parametrize(
    ("target", "args", "reason"),
    [
        ("aten.mm.default", ("f32[2, 3]", "f32[2, 3]"), "refuses its arguments"),
        ("aten.nothing.default", ("f32[2]",), "is not an operator of this torch"),
        ("aten.neg.default", ("f32[2]", "f32[2]"), "takes 1 arguments, not 2"),
        ("aten.arange.default", ("i64[]",), "depends on a run-time number"),
        ("aten.select.int", ("f32[2]", 0, "i64[1]"), "a run-time number has no dims"),
        ("aten.fft_fft.default", ("f32[2]",), "has a result of dtype torch.complex64"),
        ("aten.nonzero.default", ("f32[2]",), "refuses its arguments"),
        ("stretto.narrow", ("f32[5]", 0, "i64[]", 6), "refuses its arguments"),
    ],
)
def test_what_torch_refuses_is_refused(target: str, args: tuple[object, ...], reason: str) -> None:
    items = tuple(value(item) if isinstance(item, str) else item for item in args)
    with pytest.raises(VerifyError, match=reason):
        infer(target, items)  # type: ignore


def test_keywords_and_ops() -> None:
    op = tensor_op("aten._to_copy.default", value("i64[3]"), dtype=torch.float16)
    assert str(op.result.type) == "f16[3]" and op.kwargs == (("dtype", torch.float16),)
    with pytest.raises(VerifyError, match="has no argument `what`"):
        tensor_op("aten.neg.default", value("f32[]"), what=1)
    with pytest.raises(VerifyError, match="cannot read a list"):
        tensor_op("aten.neg.default", value("list<f32[]>"))


def test_inference_works_inside_another_fake_mode() -> None:
    with torch._subclasses.FakeTensorMode():
        assert infer("aten.dot.default", (value("f32[11]"), value("f32[11]"))) == (
            parse_type("f32[]"),
        )


def test_the_default_overload_may_be_left_out() -> None:
    assert resolve("stretto.narrow") is resolve("stretto.narrow.default")
