"""Calls in the user's code: user functions are traced inline, builtins have rules."""

# pyright: reportPrivateUsage=false
# module hooks are private tables

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import logging
import threading
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum
from operator import is_not
from typing import Any, NoReturn

import torch
from torch import fx, nn

from stretto.errors import CaptureError, SourceLocation
from stretto.frontends.python.calls import (
    arguments,
    output_journal,
    recursion,
    sized,
    special,
    texts,
)
from stretto.frontends.python.calls.arguments import names_of_torch, takes
from stretto.frontends.python.calls.builtins import (
    RULES,
    generator_method,
    list_method,
    needs_items,
)
from stretto.frontends.python.calls.generated import OF_GENERATORS, Generated, generated_by
from stretto.frontends.python.calls.iterating import USE_ALL, drained
from stretto.frontends.python.calls.special import (
    check_frames,
    check_harmless,
    check_repeatable,
    implementation,
)
from stretto.frontends.python.control import branches
from stretto.frontends.python.control.branches import as_flag
from stretto.frontends.python.guards.reach import ATOMS, is_of_user, original
from stretto.frontends.python.lists import sources
from stretto.frontends.python.lists.iterators import TracedIterator
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.objects.copies import check_change, replacement
from stretto.frontends.python.objects.foreign import (
    is_foreign,
    note_call,
    note_change,
    note_made,
)
from stretto.frontends.python.objects.heap import MUTATORS
from stretto.frontends.python.source.redirected import code_of, is_rewritten
from stretto.frontends.python.source.rewrite import (
    NoSource,
    is_user_function,
    pulled,
    rewritten,
)
from stretto.frontends.python.tracing.frames import read_cell
from stretto.frontends.python.tracing.locations import enter_graph, in_module, is_user_file
from stretto.frontends.python.tracing.signals import Abort, Poison, fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import active, suspended, tracer
from stretto.frontends.python.values import number_methods
from stretto.frontends.python.values.data_dependent_sizes import compare_in_run, plain
from stretto.frontends.python.values.either import Either, check_entries, first_either, replaced
from stretto.frontends.python.values.number_methods import own_method
from stretto.frontends.python.values.scalars import concrete, is_number, known
from stretto.frontends.python.values.state import TracedList, contents, is_box, is_same
from stretto.frontends.python.values.texts import is_text, settled_texts

_modules = torch.nn.modules.module
_CONTEXTS = (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.set_grad_enabled)


class _Outside(threading.local):
    """The handler of calls made by rewritten code outside of a capture, per thread; None: Python
    itself."""

    def __init__(self) -> None:
        self.handler: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None


OUTSIDE = _Outside()


def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Make a call in rewritten code: traced in a capture, else by the handler of OUTSIDE, else by
    Python."""
    if active() is None:
        handler = OUTSIDE.handler
        return function(*args, **kwargs) if handler is None else handler(function, args, kwargs)
    return as_flag(traced_call(function, args, kwargs))


def traced_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace a call, choosing by the callee: rules, user functions, modules, classes, or native
    code."""
    for given in (function, *args, *kwargs.values()):
        if isinstance(given, Poison):
            given.fail()
    if isinstance(function, Either):
        return branches.for_each_option(function, lambda option: traced_call(option, args, kwargs))
    if isinstance(function, texts.TextMethod):
        return function(*args, **kwargs)
    if is_number(function):
        raise TypeError(
            f"'{number_methods.kind_of_number(function).__name__}' object is not callable"
        )
    moved = replacement(getattr(function, "__self__", None))
    if moved is not None:
        return getattr(moved, function.__name__)(*args, **kwargs)
    _note_changes(function, args)
    owner = getattr(function, "__self__", None)
    if args and isinstance(owner, dict | set):
        updates = function.__name__.endswith(("update", "subtract"))
        first = fixed_keys(owner, args[0]) if updates else fixed_key(args[0])
        args = (first, *args[1:])
    acts = output_journal.rule_of(function)
    if acts is not None:
        return acts(*args, **kwargs)
    check_repeatable(function)
    check_harmless(function, args, kwargs)
    check_frames(function, args, kwargs)
    function = original(function)
    args, kwargs = arguments.with_accepted(function, args, kwargs)
    if number_methods.is_of_operator(function, args):
        return number_methods.of_operator(function, args)
    rule = _rule(function)
    if args and type(args[0]) is Generated and function in OF_GENERATORS:
        return OF_GENERATORS[function](*args)
    if rule is not None:
        args = tuple(map(plain, args))
        if function is not next and function is not iter:
            args = _collected(function, args)
        if function in USE_ALL:
            args = tuple([drained(x) if isinstance(x, TracedIterator) else x for x in args])
        if function in (min, max, sorted) and args and type(args[0]) is types.GeneratorType:
            args = (list(args[0]), *args[1:])
        found = first_either((args, kwargs))
        if found is not None:
            return _with_options(function, args, kwargs, found)
        named = names_of_torch(function, kwargs)
        if takes(rule, named):
            outcome = rule(*args, **named)
            if outcome is not NotImplemented:
                return outcome
    match function:
        case nn.Module() if own_method(function, "__call__") is None:
            return _call_module(function, args, kwargs)
        case functools.partial():
            return traced_call(
                function.func, (*function.args, *args), {**function.keywords, **kwargs}
            )
        case types.MethodType():
            if isinstance(function.__self__, TracedList | Generated):
                return function(*args, **kwargs)
            if function.__func__ in _CALLS_OF_MODULES and isinstance(function.__self__, nn.Module):
                return _call_module(function.__self__, args, kwargs)
            kind = special.applied(function)
            if kind is not None:
                return special.apply(kind, args, kwargs, traced_call)
            return traced_call(function.__func__, (function.__self__, *args), kwargs)
        case types.FunctionType():
            return _call_function(function, args, kwargs)
        case functools._lru_cache_wrapper():
            return _call_cached(function, args, kwargs)
        case _:
            return _call_other(function, args, kwargs)


def _call_cached(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace a call of a function with a cache (`functools.lru_cache`).

    Its cached results outlive the capture. If all arguments are Python values, it is called as
    in eager PyTorch; else its body is traced and nothing is cached. One that prints, warns or
    logs is called by the run, and so acts once for equal arguments.
    """
    are_known = all(_is_atom(x) or isinstance(x, logging.Logger) for x in (*args, *kwargs.values()))
    if are_known and output_journal.called_once(function, args, kwargs):
        return None
    if all(map(_is_atom, (*args, *kwargs.values()))):
        with suspended():
            return function(*args, **kwargs)
    return traced_call(function.__wrapped__, args, kwargs)


def _is_atom(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_atom, value))  # pyright: ignore[reportUnknownArgumentType]
    return type(value) in ATOMS or isinstance(value, type | Enum)


_CALLS_OF_MODULES: frozenset[Any] = frozenset({nn.Module.__call__, nn.Module._call_impl})  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
"""Functions that `module.__call__` and `torch.compile` call with a module as the first argument."""


def fixed_key(key: Any) -> Any:
    """Return a dict key or set item with sizes as ints of this call, and traced numbers as Python
    numbers if they are the same in every run. Needed because keys persist from call to call."""
    if isinstance(key, torch.SymInt):
        return int(key)
    if is_number(key):
        try:
            return concrete(key, "number for a key")
        except Abort:
            return key
    if type(key) is not tuple:
        return key
    parts: Any = tuple(map(fixed_key, key))  # pyright: ignore[reportUnknownArgumentType]
    return parts if any(map(is_not, key, parts)) else key  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def fixed_keys(holder: Any, items: Any) -> Any:
    """Return the argument of a dict or set update with all keys passed through `fixed_key`; the
    same object if none changes."""
    kind: Any = type(items)
    if kind in (dict, OrderedDict, Counter):
        pairs = [(fixed_key(key), value) for key, value in items.items()]
        return kind(dict(pairs)) if any(map(is_not, items, (key for key, _ in pairs))) else items
    if kind not in (list, tuple, set, frozenset):
        return items
    has_pairs = isinstance(holder, dict) and not isinstance(holder, Counter)
    found = [_fixed_pair(item) if has_pairs else fixed_key(item) for item in items]
    return kind(found) if any(map(is_not, items, found)) else items


def _fixed_pair(pair: Any) -> Any:
    """Return a (key, value) pair with the key passed through `fixed_key`."""
    if type(pair) is not tuple or len(pair) != 2:  # pyright: ignore[reportUnknownArgumentType]
        return pair
    key: Any = fixed_key(pair[0])
    return pair if key is pair[0] else (key, pair[1])  # pyright: ignore[reportUnknownVariableType]


def _note_changes(function: Any, args: tuple[Any, ...]) -> None:
    """Record the object that a builtin changes if it is a method like `append`, or `setattr`."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if name in MUTATORS and owner is not None:
        changes(owner)
    elif name in ("setattr", "delattr", "__setattr__", "__delattr__") and args:
        given = args if owner is None or owner is builtins else (owner, *args)
        changes_attribute(given[0], given[1] if len(given) > 1 else "")
    elif function is next and args:
        check_iterator(args[0])


def _stores(function: Any) -> bool:
    """Return True if a function only stores its arguments: a method of a container, a user class
    or an exception class."""
    if isinstance(function, type):
        return is_of_user(function) or issubclass(function, BaseException)
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    kind = owner if isinstance(owner, type) else type(owner)
    is_made = name in ("__init__", "__new__") and issubclass(kind, BaseException)
    return is_made or name in MUTATORS or name in ("setattr", "__setattr__")


_KEEP_THE_LIST = frozenset({"append", "appendleft", "insert", "setdefault", "__setitem__"})
"""Methods of containers that store a list itself as an item, whatever its length."""


def check_iterator(iterator: Any) -> None:
    """Fail if an iterator that existed before the call would be advanced: its position would
    persist."""
    if isinstance(iterator, Iterator) and tracer().heap.knows(iterator):
        fail(
            f"a {type(iterator).__name__} that outlives the call is advanced",
            "keep a list and a position, or make the iterator in the compiled function",
        )


def check_tensor_attribute(tensor: torch.Tensor, name: str) -> None:
    """Fail if an attribute is set on a tensor that existed before the call; `grad` and
    `requires_grad` are exempt."""
    state = tracer()
    known = any(tensor is traced for traced in state.inputs.values()) or any(
        tensor is constant.traced for constant in state.constants.values()
    )
    if (known or not isinstance(tensor, TracedTensor)) and name not in ("grad", "requires_grad"):
        fail(
            f"the attribute '{name}' is set on a tensor that outlives the call",
            "call copy_() to change its content; keep other values in an object of your own",
        )


def changes(holder: Any) -> None:
    """Record that an attribute or item of `holder` is set."""
    state = active()
    if state is None:
        return
    if is_foreign(holder):
        note_change(holder, "this line")
    check_change(holder)
    state.heap.touch(holder, any(not region.is_transaction for region in state.regions[1:]))


_OF_FUNCTIONS = frozenset(
    (
        *("__annotations__", "__code__", "__defaults__", "__dict__", "__doc__", "__kwdefaults__"),
        *("__module__", "__name__", "__qualname__"),
    )
)
"""Attributes of functions that are not in their `__dict__`."""


def changes_attribute(holder: Any, name: Any) -> None:
    """Record that an attribute is set or deleted. A function that outlives the call is tracked by
    the heap from then on."""
    state = active()
    if state is not None and isinstance(holder, types.FunctionType) and not is_rewritten(holder):
        if name in _OF_FUNCTIONS:
            fail(
                f"'{name}' of a function that outlives the call is set",
                "set it outside of the compiled function",
            )
        state.heap.add((holder,))
    changes(holder)


def _rule(function: Any) -> Callable[..., Any] | None:
    if getattr(function, "__module__", None) == "torch.random":
        function = inspect.unwrap(function)  # importing Dynamo wraps these
    owner = getattr(function, "__self__", None)
    if isinstance(owner, TracedTensor) and owner.number is not None:
        number_methods.check_attribute(owner, function.__name__)
    if isinstance(owner, torch.Tensor) and function.__name__ in _METHODS:
        return functools.partial(_METHODS[function.__name__], owner)
    if isinstance(owner, torch.Size) and function.__name__ == "numel":
        return functools.partial(sized.count_of_size, owner)
    if isinstance(owner, list | tuple | TracedList) and not isinstance(function, types.MethodType):
        return list_method(function)
    if isinstance(owner, torch.Generator):
        return generator_method(function)
    if isinstance(owner, str):
        return texts.str_method(function)
    if isinstance(owner, dict) and function.__name__ == "get":
        return functools.partial(_get_by_text, owner)
    try:
        return RULES.get(function)
    except TypeError:
        return None


def _get_by_text(holder: dict[Any, Any], key: Any, default: Any = None) -> Any:
    return sources.entry_by_text(holder, key, default) if is_text(key) else NotImplemented


_METHODS = {**sources.METHODS, **sized.METHODS, **arguments.METHODS}
"""Tensor methods that have their own rules."""


def _call_other(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a builtin, a class or a callable object."""
    method = own_method(function, "__call__")
    if method is not None:
        return traced_call(method, args, kwargs)
    kind = function
    if isinstance(function, types.MethodWrapperType) and function.__name__ == "__call__":
        kind = function.__self__
    if isinstance(kind, type) and _is_made_by_user(kind):
        return _made(kind, args, kwargs)
    return _native(function, args, kwargs)


def _is_made_by_user(kind: type) -> bool:
    """Return True if calling a class runs a user-defined `__new__` or `__init__`."""
    makers = (kind.__new__, kind.__init__)
    return type(kind).__call__ is type.__call__ and any(
        is_user_function(inspect.unwrap(maker)) for maker in makers
    )


def _made(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make an object of a class as `type.__call__` does, tracing `__new__` and `__init__`."""
    new: Any = kind.__new__
    if new is object.__new__:
        made = new(kind)
    else:
        made = traced_call(new, (kind, *args), kwargs)
    if isinstance(made, kind):
        traced_call(type(made).__init__, (made, *args), kwargs)
    return made


def _with_options(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], either: Either
) -> Any:
    """Make a call once for each option of an argument that is one of several values."""

    def called(option: Any) -> Any:
        return traced_call(function, *replaced((args, kwargs), either, option))

    return branches.for_each_option(either, called)


def _collected(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace generators among the arguments by lists.

    Functions that take items one by one (`zip`, `enumerate`, itertools) get Python generators
    instead if nothing among the arguments needs a loop of the Program.
    """
    generators = [item for item in args if type(item) is Generated]
    if not generators:
        return args
    is_lazy = function in (zip, enumerate) or getattr(function, "__module__", "") == "itertools"
    known = not any(isinstance(item, TracedList | Indexed) for item in args)
    if is_lazy and known and all(item.can_wait for item in generators):
        return args
    return tuple([item.items() if type(item) is Generated else item for item in args])


def _native(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if function is not next and function is not iter and not _stores(function):
        args = _collected(function, args)
        args, kwargs = settled_texts((args, kwargs))
    outcome = special.method(function, args)
    if outcome is not NotImplemented:
        return outcome
    for given in (getattr(function, "__self__", None), *args):
        check_entries(given)
    if not _stores(function):
        found = next((item for item in args if isinstance(item, Either)), None)
        if found is not None:
            return _with_options(function, args, kwargs, found)
    if getattr(function, "__name__", "") not in _KEEP_THE_LIST or not _stores(function):
        args, kwargs = needs_items(function, args, kwargs)
    args, kwargs = sized.with_sizes(function, args, kwargs)
    kwargs = arguments.with_flags(function, kwargs)
    switch = arguments.switch_of(function, kwargs)
    if switch is not None:
        return _switched(function, args, kwargs, switch)
    if isinstance(function, _SCRIPTED):
        return _scripted(function, args, kwargs)
    note_call(function, args, kwargs)
    held = _held(args)
    try:
        made = function(*args, **kwargs)
    except Exception as error:  # whatever it raises
        arguments.check_error(error, function, args, kwargs)
        raise
    compare_in_run()
    note_made(made, function, (*args, *kwargs.values()))
    for box, before in held:
        if not is_same(contents(box), before):
            changes(box)
    return made


def _held(args: tuple[Any, ...]) -> list[tuple[Any, dict[Any, Any]]]:
    """Return the boxes (containers and modules) that outlive the function among the arguments of a
    native call, each with its contents. Empty outside of regions: there all changes are found
    at the end."""
    state = tracer()
    if len(state.regions) == 1:
        return []
    found = list[Any]()
    for item in args:
        if isinstance(item, nn.Module) and state.heap.knows(item):
            with state.running_natively():  # their own `__hash__` must not be traced
                modules = list(item.modules())
            found += [box for module in modules for box in state.heap.boxes_of(module)]
        elif is_box(item):
            found += state.heap.boxes_of(item)
    return [(box, contents(box)) for box in found]


_SCRIPTED = (torch.jit.ScriptModule, torch.jit.ScriptFunction, torch._C.ScriptMethod)


def _scripted(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call TorchScript code. Its operators are recorded, but not its control flow. Its interpreter
    reports every error, also an unknown value, as its own RuntimeError."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if _OF_INTERPRETER not in str(error):
            raise
        fail(
            "TorchScript code decides by the content of a tensor, or raises an error",
            "compile the Python function or module that it was made of, or with fallback=True",
        )


_OF_INTERPRETER = "failed in the TorchScript interpreter"


def _switched(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], switch: str) -> Any:
    """Branch on a run-time flag where the function accepts Python bools only, with one call in
    each arm."""

    def called(value: bool) -> Any:
        return traced_call(function, args, {**kwargs, switch: value})

    value = known(kwargs[switch])
    if value is not None:
        return called(value)
    return branches.branch(kwargs[switch], lambda: called(True), lambda: called(False))


def _call_function(
    function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    filename = function.__code__.co_filename
    if not is_rewritten(function) and not is_user_file(filename):
        context = _context_of(function)
        if context is not None:
            with context:
                return traced_call(function.__wrapped__, args, kwargs)  # pyright: ignore[reportFunctionMemberAccess]
        inner = implementation(function, args)
        if inner is not None:
            return traced_call(inner, args, kwargs)
        if filename.startswith("<"):
            _note_sourceless(function)
        _check_decorator(function)
        return _native(function, args, kwargs)
    _check_kind(function)
    kwargs = special.with_defaults(function, kwargs)
    if code_of(function).co_flags & inspect.CO_GENERATOR:
        return _generated(function, args, kwargs)
    if not is_rewritten(function):
        _note(function)
    try:
        with tracer().executed.paused():
            staged = rewritten(function)
    except NoSource:
        _note_sourceless(function)
        tracer().redirected.leave(function)
        return _native(function, args, kwargs)
    return recursion.call_user(function, staged, args, kwargs)


def _generated(
    function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generated:
    """Call a generator function: its body runs when the result is consumed."""
    _note(function)
    try:
        staged: Any = rewritten(function)
    except NoSource:
        staged = function
    inspect.signature(function).bind(*args, **kwargs)  # raises what the call raises
    push = None
    if not inspect.isgeneratorfunction(staged):
        push = functools.partial(recursion.call_user, function, staged, args, kwargs)
    elif pulled(function) is None:
        _fail_kind(
            function,
            "a generator function in which a yield is inside of a try with handlers, or whose "
            "source is not found",
            "return a list instead of using yield",
        )
    return generated_by(function, push, args, kwargs)


def _note(function: types.FunctionType) -> None:
    """Record a traced function, and track the objects that it can reach."""
    state = tracer()
    state.note_traced(function, code_of(function))
    state.heap.add((function,))
    state.redirected.update()


def _note_sourceless(function: types.FunctionType) -> None:
    name = function.__qualname__
    tracer().sourceless.append(name)
    tracer().note(f"'{name}' has no source that can be read: its control flow runs natively")


def _check_kind(function: types.FunctionType) -> None:
    """Fail for async functions, which cannot be captured."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        _fail_kind(function, "an async function", "use a plain function")


def _fail_kind(function: types.FunctionType, reason: str, remedy: str) -> NoReturn:
    name = function.__name__
    code = code_of(function)
    place = SourceLocation(code.co_filename, code.co_firstlineno, function=code.co_qualname)
    message = f"'{name}' is {reason}, which cannot be captured"
    raise Abort(CaptureError(message, location=place, remedy=remedy))


def _context_of(function: types.FunctionType) -> Any:
    """Return a new context like that of `@torch.no_grad()` or a similar decorator around a
    function; else None."""
    if not hasattr(function, "__wrapped__") or not function.__code__.co_filename.endswith(
        "_contextlib.py"
    ):
        return None
    for cell in function.__closure__ or ():
        held = cell.cell_contents
        owner = getattr(held, "__self__", held)
        if isinstance(owner, _CONTEXTS):
            return owner.clone()
    return None


def _check_decorator(function: types.FunctionType) -> None:
    """Fail for a function decorated with a context that is refused in `with`, such as
    `torch.random.fork_rng()`."""
    for cell in function.__closure__ or ():
        held: Any = read_cell(cell)
        if isinstance(held, contextlib.AbstractContextManager):
            rule = RULES.get(getattr(held, "func", None))
            if rule is not None:
                rule()


def _call_module(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with in_module(tracer().path_of(module)):
        return _forward(module, args, kwargs)


def _forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return call_with_hooks(module, functools.partial(_sequential, module), args, kwargs)
    if isinstance(module, fx.GraphModule):
        enter_graph(module)
    forward = module.forward
    inner = getattr(forward, "__func__", forward)
    is_known = is_user_function(inner) or _rule(inner) is not None
    if is_known or is_user_function(getattr(inner, "__wrapped__", None)):
        return call_with_hooks(module, functools.partial(call, forward), args, kwargs)
    return _native(module, args, kwargs)


def _sequential(module: nn.Sequential, value: Any) -> Any:
    for part in module:
        value = traced_call(part, (value,), {})
    return value


def call_with_hooks(
    module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module like `Module.__call__`; its hooks are traced like other user functions."""
    with_kwargs = module._forward_pre_hooks_with_kwargs
    for key, hook in _hooks(_modules._global_forward_pre_hooks, module._forward_pre_hooks):
        outcome = call(hook, module, args, *((kwargs,) if key in with_kwargs else ()))
        if outcome is not None and key in with_kwargs:
            args, kwargs = outcome
        elif outcome is not None:
            args = outcome if isinstance(outcome, tuple) else (outcome,)
    result = forward(*args, **kwargs)
    with_kwargs = _modules._global_forward_hooks_with_kwargs | module._forward_hooks_with_kwargs
    for key, hook in _hooks(_modules._global_forward_hooks, module._forward_hooks):
        outcome = call(hook, module, args, *((kwargs,) if key in with_kwargs else ()), result)
        result = result if outcome is None else outcome
    return result


def _hooks(every: dict[int, Any], own: dict[int, Any]) -> list[tuple[int, Any]]:
    """Return numbered hooks: those of all modules, then those of this module."""
    return [*every.items(), *own.items()]


Hooks.call = call
