"""`torch.compile(..., backend="stretto")`, and both compilers nested in each other."""

from __future__ import annotations

import copy
import importlib.metadata
import tomllib
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch.utils import _pytree as pytree

import stretto
from stretto.call import dynamo
from stretto.errors import CaptureError, StrettoWarning
from stretto.ir.ops import ForOp, IfOp, WhileOp

BY_HAND = {"backend": "interpreter"}
"""Options of a backend without a compiler, for tests that do not depend on the machine."""


_before: list[stretto.Compiled] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    _before[:] = dynamo.graphs()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def graphs() -> list[stretto.Compiled]:
    """The graphs that this test has compiled."""
    return [graph for graph in dynamo.graphs() if not any(graph is old for old in _before)]


def compiled(function: Any, **settings: Any) -> Any:
    return torch.compile(function, backend=dynamo.backend, **settings)


def check(function: Callable[..., Any], *args: Any, **settings: Any) -> None:
    """Check that the results, and the arguments after the call, are those of eager PyTorch."""
    given, other = copy.deepcopy(args), copy.deepcopy(args)
    expected = copy.deepcopy(function)(*given)
    settings = {"options": BY_HAND, **settings}
    check_equal(compiled(copy.deepcopy(function), **settings)(*other), expected)
    check_equal(other, given)


def check_equal(found: Any, expected: Any) -> None:
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    for one, other in pairs:
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


# ---- the entry point -------------------------------------------------------------------------
def test_the_entry_point_names_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    group = project["project"]["entry-points"]["torch_dynamo_backends"]
    (entry,) = (importlib.metadata.EntryPoint(n, v, "") for n, v in group.items())
    assert (entry.name, entry.load()) == ("stretto", dynamo.backend)


def test_torch_finds_the_backend_by_its_name() -> None:
    if "stretto" not in torch._dynamo.list_backends():
        pytest.skip("stretto was installed here before it had this entry point")
    x = torch.randn(3)
    assert torch.equal(torch.compile(lambda x: x + 1, backend="stretto")(x), x + 1)


# ---- programs --------------------------------------------------------------------------------
class Counting(nn.Module):
    """Changes buffers and its input; returns tensors, a size, None, and views of all of these."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, k: int) -> Any:
        self.count += 1
        y = self.norm(torch.relu(self.linear(x)))
        x.add_(k)
        return {"view": y.view(-1)[2:], "input": x, "turned": x.t()}, x.shape[0] * 2, None, y


@pytest.mark.parametrize(
    ("dynamic", "training"), [(None, True), (None, False), (True, True), (False, False)]
)
def test_a_module_that_changes_buffers_and_inputs(dynamic: bool | None, training: bool) -> None:
    eager = Counting().train(training)
    module = copy.deepcopy(eager)
    fast = compiled(module, dynamic=dynamic, options=BY_HAND)
    for size in (3, 5, 3):
        x = torch.randn(size, 4)
        other = x.clone()
        found, expected = fast(x, size), eager(other, size)
        check_equal(found, expected)
        assert found[0]["input"] is x
        check_equal((x, dict(module.named_buffers())), (other, dict(eager.named_buffers())))


def test_on_the_native_machine() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    fast = compiled(module, fullgraph=True)
    x = torch.randn(3, 8)
    torch.testing.assert_close(fast(x), module(x))
    (graph,) = graphs()
    assert graph.signatures[0].stages.backend == "cpu"
    assert len(graph.signatures[0].captured.inputs) == 1  # the parameters are constants
    module[0].weight.mul_(2)
    torch.testing.assert_close(fast(x), module(x))
    module[0].weight = nn.Parameter(torch.randn(16, 8))
    torch.testing.assert_close(fast(x), module(x))


@pytest.mark.whole
def test_further_calls_take_the_program_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo has compared the sizes; changed weights, other weights and other sizes are noticed."""
    module = nn.Linear(8, 16).eval()
    fast = compiled(module, fullgraph=True)
    x = torch.randn(3, 8)
    fast(x)
    with monkeypatch.context() as patch:
        patch.setattr(stretto.Compiled, "_call", None)
        torch.testing.assert_close(fast(2 * x), module(2 * x))
        with torch.no_grad():
            module.weight.mul_(3)
        torch.testing.assert_close(fast(x), module(x))
        assert fast(x.double().float()[:, ::1]).shape == (3, 16)
    module.weight = nn.Parameter(torch.randn(16, 8))
    torch.testing.assert_close(fast(x), module(x))
    for size in (5, 1, 0, 3):
        x = torch.randn(size, 8)
        torch.testing.assert_close(fast(x), module(x))
    x = torch.randn(8, 5).T
    torch.testing.assert_close(fast(x), module(x))


def test_a_float_that_a_program_was_made_for_is_part_of_the_key() -> None:
    def function(x: Tensor, momentum: float) -> Tensor:
        mean, variance = torch.zeros(4), torch.ones(4)
        y = nn.functional.batch_norm(x, mean, variance, momentum=momentum, training=True)
        return y + mean * momentum

    fast = compiled(function)
    x = torch.randn(6, 4)
    for momentum in (0.1, 0.2, 0.3, 0.2, 0.1):
        torch.testing.assert_close(fast(x, momentum), function(x, momentum))


def test_modules_of_one_class_share_a_graph_and_keep_their_weights() -> None:
    layers = [nn.Linear(4, 4).eval() for _ in range(3)]
    fast = [compiled(layer, options=BY_HAND) for layer in layers]
    x = torch.randn(2, 4)
    for _ in range(2):
        for one, other in zip(fast, layers, strict=True):
            torch.testing.assert_close(one(x), other(x))


class Growing(nn.Module):
    """A module that replaces its cache by another tensor in each call."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("cache", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.cache = self.cache + x * self.weight
        return self.cache * 2


def test_a_buffer_that_is_replaced_becomes_an_input() -> None:
    module, eager = Growing(), Growing()
    eager.load_state_dict(module.state_dict())
    fast = compiled(module, options=BY_HAND)
    for _ in range(6):
        x = torch.randn(3)
        torch.testing.assert_close(fast(x), eager(x))
    made = graphs()
    assert [len(graph.signatures) for graph in made] == [1]
    assert len(made[0].signatures[0].captured.inputs) == 2


def test_results_share_memory_as_in_eager() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x[1:], y, y.t(), y[::2]

    for size in (4, 6, 8):  # the second graph has a symbolic size
        x = torch.randn(size, 3)
        part, y, turned, rows = compiled(views, options=BY_HAND)(x)
        part.fill_(5)
        assert x[1:].eq(5).all()
        y.zero_()
        assert not turned.any() and not rows.any()
        assert (part.stride(), turned.stride(), rows.stride()) == ((3, 1), (1, 3), (6, 1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_arguments_that_begin_elsewhere(dynamic: bool) -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        return x[1:], x.view(torch.int32), x.split(2)[1], x + 1

    fast = compiled(views, dynamic=dynamic, options=BY_HAND)
    memory = torch.arange(40.0)
    for start, size in ((0, 6), (7, 6), (3, 8), (8, 4)):
        x = memory[start : start + size]
        check_equal(fast(x), views(x))
        assert [item.data_ptr() for item in fast(x)[:3]] == [i.data_ptr() for i in views(x)[:3]]


def test_arguments_that_share_memory_in_one_call_only() -> None:
    def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return y[1:], x[:1], y + x

    fast = compiled(views, options=BY_HAND)
    memory = torch.arange(12.0)
    for x, y in ((memory[:4], memory[4:8]), (torch.ones(4), torch.zeros(4))):
        check_equal(fast(x, y), views(x, y))


def test_graph_breaks() -> None:
    said: list[str] = []

    def talking(x: Tensor) -> Tensor:
        y = x + 1
        said.append("here")
        torch._dynamo.graph_break()
        if y.sum() > 0:
            return y * 2
        return y - 1

    for sign in (1.0, -1.0):
        x = torch.full((3,), 4.0) * sign
        torch.testing.assert_close(compiled(talking, options=BY_HAND)(x), talking(x))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(talking, fullgraph=True)(torch.ones(3))


# ---- operators with functions as operands ----------------------------------------------------
def branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


def repeats(x: Tensor) -> Any:
    start = torch.tensor(0)
    return torch.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5 + x), (start, x))


def scans(x: Tensor) -> Any:
    return torch_scan(lambda c, y: (c + y["a"], {"sum": c * y["b"]}), x[0] * 2, {"a": x, "b": x})


def scans_back(x: Tensor) -> Any:
    return torch_scan(lambda c, y: (c * 0.5 + y, [c + 1, y * c]), x[0] * 2, x, reverse=True)


def scans_columns(x: Tensor) -> Any:
    return torch_scan(lambda c, y: (c + y, c.clone()), x[:, 0].clone(), x, dim=1)


def maps(x: Tensor) -> Any:
    return torch_map(lambda row, other: (row.sin() + other, row * 2), x, torch.ones(3))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (branches, IfOp),
        (repeats, WhileOp),
        (scans, ForOp),
        (scans_back, ForOp),
        (scans_columns, ForOp),
        (maps, ForOp),
    ],
)
def test_control_flow_of_graphs_is_that_of_programs(
    function: Callable[..., Any], kind: type
) -> None:
    x = torch.randn(6, 3)
    fast = compiled(function, options={**BY_HAND, "unroll": 0}, fullgraph=True)
    check_equal(fast(x), function(x))
    check_equal(fast(-x), function(-x))
    (graph,) = graphs()
    assert any(isinstance(op, kind) for op in graph.signatures[0].captured.program.walk())
    direct = stretto.compile(function, backend="interpreter")
    check_equal(direct(x), function(x))


@pytest.mark.parametrize("size", [1, 2])
def test_scans_of_few_rows(size: int) -> None:
    check(scans, torch.randn(size, 3))


# ---- what else graphs hold -------------------------------------------------------------------
class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def into_memory(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    return y


def checkpointed(x: Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda a: a.sin().cos(), x, use_reentrant=False)


@pytest.mark.parametrize(
    "function",
    [
        under_autocast,
        into_memory,
        checkpointed,
        lambda x: Exponential.apply(x) + 1,
        lambda x: torch.vmap(lambda row: row.sum() * row)(x),
        lambda x: torch.vmap(lambda row: (row[1:], row.sum()))(x),
        lambda x: torch.from_numpy(x.numpy() + 1),
        lambda x: x[1:, None].expand(3, 2, 3).contiguous().chunk(2, 1),
        lambda x: (x.shape, x.dtype, [x.numel(), "text"], {"a": (x, None)}),
    ],
)
def test_what_graphs_hold(function: Callable[..., Any]) -> None:
    check(function, torch.randn(4, 3))


def test_sizes_among_arguments_and_results() -> None:
    def sized(x: Tensor, n: int) -> Any:
        return x.view(n, -1).sum(1), x.shape[0] // n, n * 2

    fast = compiled(sized, dynamic=True, options=BY_HAND)
    for size, n in ((6, 2), (12, 3), (20, 5), (20, 4)):
        x = torch.randn(size)
        check_equal(fast(x, n), sized(x, n))


def test_symbolic_graphs_are_programs_for_many_sizes() -> None:
    def halves_of(x: Tensor, n: int) -> Any:
        return torch.relu(x @ x.t())[: x.shape[0] // 2].view(-1) + x.shape[0], x[:n]

    fast = compiled(halves_of, dynamic=True, options=BY_HAND)
    for size, n in ((4, 2), (6, 3), (8, 5), (10, 7), (14, 9)):
        x = torch.randn(size, 3)
        check_equal(fast(x, n), halves_of(x, n))
    (graph,) = graphs()
    assert len(graph.signatures) == 2  # the first size's, and one for all others


def test_floats_among_the_arguments() -> None:
    def scaled(x: Tensor, factor: float, momentum: float) -> Any:
        mean = torch.zeros(3)
        return nn.functional.batch_norm(x, mean, mean + 1, None, None, True, momentum), x * factor

    fast = compiled(scaled, dynamic=True, options=BY_HAND)
    x = torch.randn(4, 3)
    for factor, momentum in ((0.5, 0.1), (0.25, 0.1), (0.25, 0.2)):
        check_equal(fast(x, factor, momentum), scaled(x, factor, momentum))


# ---- settings and errors ---------------------------------------------------------------------
def test_options_are_those_of_stretto() -> None:
    fast = compiled(lambda x: x + 1, options={"backend": "interpreter", "unroll": 7})
    fast(torch.ones(2))
    (graph,) = graphs()
    assert graph.signatures[0].stages.options.debug.unroll == 7
    assert "1 signature compiled" in graph.explain()


@pytest.mark.parametrize("mode", [None, *dynamo.MODES])
def test_modes(mode: str | None) -> None:
    check(lambda x: x + 1, torch.ones(2), mode=mode, options=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fastest"}, "mode must be one of default, reduce-overhead"),
        ({"options": {"triton.cudagraphs": True}}, "'triton.cudagraphs' is not an option of st"),
        ({"options": {"unroll": -1}}, "Debug.unroll must be an int of at least 0"),
        ({"options": {"backend": "tpu"}}, "backend must be one of auto, cpu"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x + 1, **settings)(torch.ones(2))


def test_an_error_names_the_line_of_the_user() -> None:
    def turns(x: Tensor) -> Tensor:
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = x * 2
            return torch.complex(y.float(), y.float()).abs()  # the line

    with pytest.raises(CaptureError) as caught:
        compiled(turns)(torch.ones(2))
    place = caught.value.location
    assert place is not None and place.file == __file__
    assert "# the line" in place.source()
    assert not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_gradients_are_those_of_eager_with_a_warning() -> None:
    module = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    with torch.enable_grad():
        with pytest.warns(StrettoWarning, match="a result of a graph requires grad"):
            result = compiled(module, options=BY_HAND)(x)
        result.sum().backward()
    torch.testing.assert_close(module.bias.grad, torch.full((2,), 4.0))
    assert not graphs()


def test_without_results_that_require_grad_a_graph_is_compiled() -> None:
    module = nn.Linear(3, 2)

    @torch.no_grad()
    def best(x: Tensor) -> Tensor:
        return module(x).argmax(-1)

    x = torch.randn(4, 3)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", StrettoWarning)
        assert torch.equal(compiled(best, options=BY_HAND)(x), best(x))
    assert len(graphs()) == 1


def test_a_changed_input_that_requires_grad_afterwards_is_eager() -> None:
    module = nn.Linear(3, 3)

    def adds(x: Tensor) -> None:
        x.add_(module(x))

    with torch.enable_grad():
        x = torch.zeros(2, 3)
        with pytest.warns(StrettoWarning, match="requires grad"):
            compiled(adds, options=BY_HAND)(x)
        assert x.requires_grad


# ---- inside of each other --------------------------------------------------------------------
def halves(x: Tensor) -> Tensor:
    while x.abs().max() > 1.0:
        x = x * 0.5
    return x


@pytest.mark.parametrize("backend", ["eager", dynamo.backend])
def test_stretto_inside_of_torch_compile(backend: Any) -> None:
    inner = stretto.compile(halves, backend="interpreter")

    def outer(x: Tensor) -> Tensor:
        return inner(x + 1).relu()

    x = torch.randn(4) * 7
    torch.testing.assert_close(torch.compile(outer, backend=backend)(x), halves(x + 1).relu())


@pytest.mark.parametrize("backend", ["eager", dynamo.backend])
def test_a_module_of_stretto_inside_of_torch_compile(backend: Any) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).eval()
    x = torch.randn(2, 3)
    expected = module(x)
    module[0] = stretto.compile(module[0], backend="interpreter")
    torch.testing.assert_close(torch.compile(module, backend=backend)(x), expected)
    whole = stretto.compile(module, backend="interpreter")
    torch.testing.assert_close(torch.compile(whole, backend=backend)(x), expected)


def test_torch_compile_inside_of_stretto() -> None:
    inner = torch.compile(halves, backend="eager")
    fast = stretto.compile(lambda x: inner(x) * 2, backend="interpreter")
    x = torch.randn(4) * 7
    torch.testing.assert_close(fast(x), halves(x) * 2)


def test_a_part_by_torch_compile_inside_of_a_module_of_stretto() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).eval()
    x = torch.randn(2, 3)
    expected = module(x)
    of_part, in_place = copy.deepcopy(module), copy.deepcopy(module)
    of_part[0] = torch.compile(of_part[0], backend="eager")
    in_place[0].compile(backend="eager")
    for changed in (of_part, in_place, torch.compile(module, backend="eager")):
        fast = stretto.compile(changed, backend="interpreter")
        torch.testing.assert_close(fast(x), expected)
    fast = stretto.compile(of_part, backend="interpreter")
    fast(x)
    of_part[0].bias.add_(1)
    torch.testing.assert_close(fast(x), of_part(x))


# ---- exported programs -----------------------------------------------------------------------
def test_an_exported_program() -> None:
    module = Counting().eval()
    exported = torch.export.export(module, (torch.randn(3, 4), 2)).module()
    fast = stretto.compile(copy.deepcopy(exported), backend="interpreter")
    x = torch.randn(3, 4)
    other = x.clone()
    check_equal(fast(x, 2), exported(other, 2))
    check_equal(x, other)
    with pytest.raises(AssertionError, match="Guard failed"):
        fast(torch.randn(3, 5), 2)


def test_an_error_in_an_exported_program_names_the_line_of_the_user() -> None:
    class Turning(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            return torch.complex(y, y).abs()  # the line of the module

    exported = torch.export.export(Turning(), (torch.ones(2),)).module()
    with pytest.raises(CaptureError) as caught:
        stretto.compile(exported)(torch.ones(2))
    place = caught.value.location
    assert place is not None and place.file == __file__
    assert "# the line of the module" in place.source()


_EXAMPLES = (
    "class_method", "cond_branch_nonlocal_variables", "cond_closed_over_variable",
    "dictionary", "dynamic_shape_map", "dynamic_shape_slicing",
    "dynamic_shape_view", "fn_with_kwargs", "model_attr_mutation", "null_context_manager",
    "pytree_flatten", "specialized_attribute", "user_input_mutation",
)  # fmt: skip


@pytest.mark.parametrize("name", _EXAMPLES)
def test_examples_of_torch_export(name: str) -> None:
    if find_spec("expecttest") is None:
        pytest.skip("torch's examples need the package expecttest")
    from torch._export.db.examples import all_examples

    case = all_examples()[name]
    given = [copy.deepcopy((case.example_args, case.example_kwargs)) for _ in range(4)]
    expected = copy.deepcopy(case.model)(*given[0][0], **given[0][1])
    fast = compiled(copy.deepcopy(case.model), options=BY_HAND)
    check_equal(fast(*given[1][0], **given[1][1]), expected)
    exported = torch.export.export(
        case.model, *given[2], dynamic_shapes=case.dynamic_shapes
    ).module()
    fast = stretto.compile(exported, backend="interpreter")
    check_equal(fast(*given[3][0], **given[3][1]), expected)
