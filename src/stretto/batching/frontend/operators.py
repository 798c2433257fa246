"""Tensor operators: what a call of a torch function gives, and its `Operate` statement.

The function is called on fake tensors. What it is called with becomes the static arguments of an
`Operation`, with an `Input` for each operand that the instance decides.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stretto.batching.frontend.builder import PathEnds
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_items
from stretto.batching.frontend.joins import branch
from stretto.batching.frontend.kinds import each_type, unpacked
from stretto.batching.frontend.values import (
    Dynamic,
    SliceValue,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.program import Input, Literal, Operand, Operate, Operation, call_operation
from stretto.batching.types import (
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    Type,
    UnionType,
    alternatives,
)
from stretto.errors import CaptureError
from stretto.ir.types import DType

NUMBERS = (Scalar.INT, Scalar.FLOAT, Scalar.BOOL)


class NotStatic(CaptureError):
    """A torch function needs the value of a tensor to say what it returns."""


@dataclass(slots=True)
class Arguments:
    """The arguments of an operation, and its operands in order."""

    operands: list[Dynamic] = field(default_factory=list[Dynamic])

    def add(self, value: Dynamic) -> Input:
        for number, other in enumerate(self.operands):
            if other.operand is value.operand and other.type == value.type:
                return Input(number)
        self.operands.append(value)
        return Input(len(self.operands) - 1)


class _Draws(TorchDispatchMode):
    """Finds operators that draw random numbers, or write tensors that were there before."""

    def __init__(self) -> None:
        super().__init__()
        self._made: set[int] = set()
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise CaptureError(
                f"{func} draws random numbers",
                remedy="draw them outside, and pass them as an argument of the instance; call "
                "model.eval() where they are those of dropout",
            )
        given = pytree.tree_leaves((args, kwargs or {}))
        made = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            changed = _written(func, args, kwargs or {})
            if any(_storage(item) not in self._made for item in changed):
                raise CaptureError(
                    "an operator changes a tensor in place",
                    remedy="use the operator that returns a new tensor; call model.eval() where it "
                    "is that of a normalisation",
                )
        known = {_storage(item) for item in given if isinstance(item, torch.Tensor)}
        for item in pytree.tree_leaves(made):
            if isinstance(item, torch.Tensor) and _storage(item) not in known:
                self._made.add(_storage(item))
                self._kept.append(item)
        return made


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes, by its schema."""
    found: list[torch.Tensor] = []
    for number, spec in enumerate(func._schema.arguments):
        if spec.alias_info is None or not spec.alias_info.is_write:
            continue
        value = args[number] if number < len(args) else kwargs.get(spec.name)
        found += [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return found


def is_tensor_like(value: Value) -> bool:
    """Whether an instance decides a tensor in the value."""
    match value:
        case Dynamic(_, type_):
            return any(isinstance(x, TensorType | RowsType) for x in alternatives(type_))
        case TupleValue(items):
            return any(map(is_tensor_like, items))
        case SliceValue(start, stop, step):
            return any(map(is_tensor_like, (start, stop, step)))
        case _:
            return False


def is_static(value: Value) -> bool:
    """Whether a value is the same for all instances, with all that it is made of."""
    match value:
        case Static():
            return True
        case TupleValue(items):
            return all(map(is_static, items))
        case SliceValue(start, stop, step):
            return is_static(start) and is_static(stop) and is_static(step)
        case Dynamic(Literal(), _):
            return True
        case _:
            return False


def python_of(value: Value) -> Any:
    """The Python object of a static value."""
    match value:
        case Static(item) | Dynamic(Literal(item), _):
            return item
        case TupleValue(items, is_list):
            made = map(python_of, items)
            return list(made) if is_list else tuple(made)
        case SliceValue(start, stop, step):
            return slice(python_of(start), python_of(stop), python_of(step))
        case _:
            raise TypeError(value)


def call_torch(
    frame: Frame, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """The value of a call of a torch function (or of a module of torch) on tensors of the
    instance. Raises NotStatic where its result depends on the content of tensors."""
    several = next(filter(None, map(_of_several_types, (*args, *kwargs.values()))), None)
    if several is not None:

        def once(one: Value) -> Value:
            given = [_replaced(value, several, one) for value in args]
            named = {name: _replaced(value, several, one) for name, value in kwargs.items()}
            return call_torch(frame, function, given, named)

        return each_type(frame, several, once)
    arguments = Arguments()
    given = tuple(_argument(frame, value, arguments) for value in args)
    named = tuple((name, _argument(frame, value, arguments)) for name, value in kwargs.items())
    made = _made(frame, function, given, named, arguments)
    return _emit(frame, function, given, named, arguments, made)


def _of_several_types(value: Value) -> Dynamic | None:
    """A value among the parts of an argument that may have one of several types."""
    match value:
        case Dynamic(_, UnionType()):
            return value
        case TupleValue(items):
            return next(filter(None, map(_of_several_types, items)), None)
        case SliceValue(start, stop, step):
            return next(filter(None, map(_of_several_types, (start, stop, step))), None)
        case _:
            return None


def _replaced(value: Value, part: Dynamic, new: Value) -> Value:
    match value:
        case Dynamic():
            return new if value is part else value
        case TupleValue(items, is_list, names):
            return TupleValue(tuple(_replaced(x, part, new) for x in items), is_list, names)
        case SliceValue(start, stop, step):
            return SliceValue(*(_replaced(x, part, new) for x in (start, stop, step)))
        case _:
            return value


def _argument(frame: Frame, value: Value, arguments: Arguments) -> Any:
    match value:
        case Static(item):
            return item
        case Dynamic(Literal(item), _):
            return item
        case TupleValue(items, is_list):
            made = [_argument(frame, item, arguments) for item in items]
            return made if is_list else tuple(made)
        case SliceValue(start, stop, step):
            return slice(*(_argument(frame, item, arguments) for item in (start, stop, step)))
        case Dynamic(_, type_):
            if isinstance(type_, TensorType | RowsType) or type_ in NUMBERS:
                return arguments.add(value)
            if type_ is Scalar.NONE:
                return None
            if isinstance(type_, TupleType):
                return tuple(
                    _argument(frame, item, arguments) for item in unpacked(frame, value, type_)
                )
            frame.refuse(
                f"an operand of a tensor operator is {frame.show(type_)}",
                "a tensor operator takes tensors and numbers",
            )
        case _:
            frame.refuse("a function is handed to a tensor operator")


@dataclass(frozen=True, slots=True)
class _Made:
    """What a function returns: its structure, with types for tensors and objects for the rest."""

    leaves: tuple[Any, ...]
    structure: Any
    error: BaseException | None = None
    empty: BaseException | None = None
    """What is raised where rows have no row."""


def _made(
    frame: Frame,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    arguments: Arguments,
) -> _Made:
    types = tuple(operand.type for operand in arguments.operands)
    key = (_identity(function, frame), _key(args, frame), _key(kwargs, frame), types)
    memo = frame.evaluation.operations
    if key not in memo:
        memo[key] = _tried(function, args, kwargs, types)
    made: _Made = memo[key]
    if made.error is not None:
        _raise(frame, function, made.error)
    return made


def _tried(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    types: tuple[Type, ...],
) -> _Made:
    """Calls the function with two values for each number that the instance decides: what it
    returns may not depend on them."""
    try:
        made = _called(function, args, kwargs, types, 0, _LENGTH)
        if any(type_ in NUMBERS for type_ in types):
            try:
                other = _called(function, args, kwargs, types, 1, _LENGTH)
            except IndexError:
                other = made  # the only position of a dim of size 1
            if other.leaves != made.leaves:
                raise CaptureError(
                    "the size of a tensor depends on a number of the instance",
                    remedy="keep such a tensor as a list of its rows",
                )
        if any(isinstance(type_, RowsType) for type_ in types):
            made = _of_any_length(made, lambda n: _called(function, args, kwargs, types, 0, n))
    except Exception as error:
        return _Made((), None, error)
    return made


_LENGTH, _OTHER_LENGTH = 1009, 1013
"""Lengths of rows that are tried. They are no sizes of anything else."""


def _of_any_length(made: _Made, call: Callable[[int], _Made]) -> _Made:
    """The results where the length of rows is not known: those whose first dim follows it are
    rows. Raises CaptureError where something else depends on it."""
    leaves = tuple(_rows_or_tensor(leaf) for leaf in made.leaves)
    empty: BaseException | None = None
    for length in (_OTHER_LENGTH, 1, 0):
        try:
            found = call(length)
        except Exception as error:
            if length or type(error) not in _ERRORS:
                raise
            empty = error
            continue
        if found.leaves != tuple(_with_length(leaf, length) for leaf in leaves):
            raise CaptureError(
                "a size that differs from instance to instance is not the first one of a tensor",
                remedy="go through the rows in a loop",
            )
    return _Made(leaves, made.structure, None, empty)


def _rows_or_tensor(leaf: Any) -> Any:
    if isinstance(leaf, TensorType) and leaf.shape and leaf.shape[0] == _LENGTH:
        return RowsType(TensorType(leaf.dtype, leaf.shape[1:]))
    return leaf


def _with_length(leaf: Any, length: int) -> Any:
    if isinstance(leaf, RowsType):
        return TensorType(leaf.row.dtype, (length, *leaf.row.shape))
    return leaf


def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    types: tuple[Type, ...],
    number: int,
    length: int,
) -> _Made:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = [_stand_in(type_, mode, number, length) for type_ in types]
    operation = Operation(function, args, kwargs, ())
    with torch.no_grad(), mode, _Draws():
        result = call_operation(operation, given)
    leaves, structure = pytree.tree_flatten(result)
    return _Made(tuple(map(_leaf, leaves)), structure)


def _stand_in(type_: Type, mode: FakeTensorMode, number: int, length: int) -> Any:
    match type_:
        case TensorType(dtype, shape):
            with mode:
                return torch.empty(shape, dtype=dtype.torch)
        case RowsType(row):
            with mode:
                return torch.empty((length, *row.shape), dtype=row.dtype.torch)
        case Scalar.INT:
            return number
        case Scalar.BOOL:
            return bool(number)
        case _:
            return float(number)


def _leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        try:
            dtype = DType.from_torch(leaf.dtype)
        except KeyError:
            raise CaptureError(f"a tensor of dtype {leaf.dtype} cannot be batched") from None
        return TensorType(dtype, tuple(int(dim) for dim in leaf.shape))
    return leaf


def _emit(
    frame: Frame,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    arguments: Arguments,
    made: _Made,
) -> Value:
    _check_lengths(frame, arguments, made)
    types = tuple(leaf for leaf in made.leaves if isinstance(leaf, TensorType | RowsType))
    operation = Operation(function, args, kwargs, types, frame.location)
    operands: tuple[Operand, ...] = tuple(value.operand for value in arguments.operands)
    name = getattr(function, "__name__", type(function).__name__).strip("_").lower()
    targets = tuple(frame.builder.variable(name, type_) for type_ in types)
    if targets:
        frame.builder.emit(Operate(targets, operation, operands))
    found = iter(targets)
    leaves: list[Value] = [
        Dynamic(next(found), leaf) if isinstance(leaf, TensorType | RowsType) else Static(leaf)
        for leaf in made.leaves
    ]
    return _structured(frame, leaves, made.structure)


def _check_lengths(frame: Frame, arguments: Arguments, made: _Made) -> None:
    """Rows that one operator takes have one length, and are some where it needs some."""
    rows = [value for value in arguments.operands if isinstance(value.type, RowsType)]
    lengths = [frame.assign("len", Scalar.INT, value.operand) for value in rows[:1]]
    if not rows or (len(rows) < 2 and made.empty is None):
        return
    for other in rows[1:]:
        length = frame.assign("len", Scalar.INT, other.operand)
        wrong = frame.assign("ne", Scalar.BOOL, lengths[0].operand, length.operand)
        parts = (
            "tensors of ",
            lengths[0].operand,
            " and of ",
            length.operand,
            " rows are combined",
        )
        branch(frame, wrong.operand, (_raises(frame, RuntimeError, *parts), lambda: None))
    if made.empty is not None:
        none = frame.assign("eq", Scalar.BOOL, lengths[0].operand, Literal(0))
        fails = _raises(frame, type(made.empty), str(made.empty))
        branch(frame, none.operand, (fails, lambda: None))


def _raises(frame: Frame, kind: type[BaseException], *parts: str | Operand) -> Callable[[], None]:
    def fails() -> None:
        frame.fail(kind, *parts)
        raise PathEnds

    return fails


def _structured(frame: Frame, leaves: list[Value], structure: Any) -> Value:
    """The leaves in the tuples and lists that the function returned them in."""
    if structure.is_leaf():
        return leaves.pop(0)
    children: Any = (
        structure.children() if callable(structure.children) else structure.children_specs
    )
    parts = tuple(_structured(frame, leaves, child) for child in children)
    kind = structure.type
    if kind is tuple or (isinstance(kind, type) and issubclass(kind, tuple)):
        return TupleValue(parts, names=tuple(getattr(kind, "__match_args__", ())))
    if kind is list:
        return TupleValue(parts, is_list=True)
    return frame.refuse(f"a tensor operator returns a {kind.__name__}")


_ERRORS = (TypeError, RuntimeError, IndexError, ValueError)
"""What torch raises for arguments that do not go together; other errors are of its fake tensors."""


def _raise(frame: Frame, function: Callable[..., Any], error: BaseException) -> None:
    name = getattr(function, "__qualname__", type(function).__name__)
    kind = type(error).__name__
    if isinstance(error, CaptureError):
        frame.refuse(error.message, error.remedy)
    if type(error) in _ERRORS:
        frame.fail(type(error), str(error))
        raise PathEnds
    if "DataDependent" in kind or "DynamicOutputShape" in kind or "GuardOnData" in kind:
        raise NotStatic(
            f"what {name} returns depends on the content of a tensor",
            location=frame.location,
            remedy="decide with bool(), int() or .item() of a tensor of one element",
        ) from error
    frame.refuse(f"{name} refuses its arguments: {kind}: {str(error).splitlines()[0]}")


def _identity(item: Any, frame: Frame) -> Hashable:
    """An object by its identity; it is kept, so that no other one gets the same."""
    if isinstance(item, int | float | str | bool | type(None)):
        return (type(item), item)
    frame.evaluation.kept.append(item)
    return id(item)


def _key(item: Any, frame: Frame) -> Hashable:
    match item:
        case tuple() | list():
            return (type(item), *(_key(part, frame) for part in item))
        case Input():
            return item
        case slice():
            return ("slice", *(_key(x, frame) for x in (item.start, item.stop, item.step)))
        case torch.dtype() | torch.device():
            return item
        case _:
            return _identity(item, frame)


_CHANGING = frozenset(
    (
        "append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort", "add", "discard",
        "update", "setdefault", "popitem", "appendleft", "popleft", "extendleft", "rotate",
        "difference_update", "intersection_update", "__setitem__", "__delitem__", "__setattr__",
        "__next__", "register_buffer", "register_parameter", "train", "eval", "to", "half",
    )
)  # fmt: skip
_IMPURE_MODULES = frozenset(
    ("random", "_random", "time", "os", "posix", "datetime", "secrets", "uuid", "io", "_io", "sys")
)
_IMPURE = frozenset(("open", "input", "print", "next", "setattr", "delattr", "exec", "eval"))


def _check_pure(frame: Frame, function: Callable[..., Any]) -> None:
    """Refuses what gives something else at each call, or changes what all instances share."""
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or type(owner).__module__
    owned = owner is not None and not isinstance(owner, type | types.ModuleType)
    if owned and not isinstance(owner, torch.Tensor) and name in _CHANGING:
        frame.refuse(
            f"{name} changes a {type(owner).__name__} that all instances share",
            "change lists, dicts and objects that the function makes, or those of the instance",
        )
    if (owned and type(owner).__module__ in _IMPURE_MODULES) or module in _IMPURE_MODULES:
        frame.refuse(
            f"{name} gives another value at each call",
            "pass the value as an argument of the instance",
        )
    if module == "builtins" and not owned and name in _IMPURE:
        frame.refuse(f"{name} is called, which does more than to return a value")


def call_static(frame: Frame, function: Callable[..., Any], args: Any, kwargs: Any) -> Value:
    """A call with static arguments alone, done while the function is evaluated."""
    _check_pure(frame, function)
    for value in (*args, *kwargs.values()):
        note_items(frame.evaluation, value)
    try:
        with torch.no_grad(), _Draws():
            return Static(function(*args, **kwargs))
    except CaptureError as error:
        frame.refuse(error.message, error.remedy)
    except Exception as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        frame.refuse(f"{name} raises {type(error).__name__}: {error}")


def getitem(frame: Frame, value: Value, index: Value) -> Value:
    """value[index], where one of them has tensors of the instance."""
    return call_torch(frame, operator.getitem, [value, index], {})
