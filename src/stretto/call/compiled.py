"""`stretto.compile`: the drop-in wrapper around a function or module, with its signatures."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.utils import _pytree as pytree

from stretto.call.compiler import AUTO, EntryCompiler, require_backend, target_machine
from stretto.call.eager import Notices, RequiresGrad, RunsEager
from stretto.call.entry import Entry
from stretto.call.fallback import CallSegments, Fallback, RunInPython
from stretto.call.programs import Programs
from stretto.call.signatures import callable_name, parameter_names
from stretto.errors import BuildError, CaptureError, RunError, StrettoError
from stretto.failures import is_compile_failure
from stretto.frontends.python import Caller
from stretto.frontends.python.interpreter.settled import is_settled
from stretto.frontends.python.tracing.admission import active_transformation, check_inputs
from stretto.options import Options
from stretto.progress import print_log
from stretto.text import counted, explanation

if TYPE_CHECKING:
    from pathlib import Path


_COPY_HOOKS = frozenset(("__copy__", "__deepcopy__", "__setstate__"))
"""Copy hooks that `Compiled.__getattr__` hides: those of the original would make an uncompiled
copy."""

_PASSED_THROUGH = frozenset(
    (
        "buffers", "children", "modules", "named_buffers", "named_children", "named_modules",
        "named_parameters", "parameters", "state_dict",
    )
)  # fmt: skip
"""Module methods that never return the module. They are passed on unwrapped, because Dynamo
compares them by identity with torch's own methods."""

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

print_log()


class Compiled:
    """A function or module that runs compiled. `stretto.compile` creates it; all other attributes
    are those of the original."""

    def __init__(
        self,
        function: Callable[..., Any],
        backend: str,
        options: Options,
        dynamic: bool | None = None,
        fallback: bool = False,
        pieces: CallSegments | None = None,
        target: str | None = None,
    ) -> None:
        """Wrap `function`.

        pieces: the segments and parts of the function that this one was cut from; None for a
        function that keeps its own. target: as for `compile`.
        """
        self._module = function if isinstance(function, torch.nn.Module) else None
        self._function = function
        self._backend = backend
        self._options = options
        self._dynamic = dynamic
        self._fallback = Fallback(pieces or CallSegments(self._compile_part)) if fallback else None
        self._surroundings = Caller.CUT if fallback else Caller.COMPILED
        if pieces is not None:
            self._surroundings = Caller.PYTHON
        self._compiler = EntryCompiler(
            function, backend, options, self._surroundings, cut=fallback, target=target
        )
        self._notices = Notices(options)
        self._programs = Programs(self._compiler, dynamic, self._notices)
        if self._module is None:
            functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_dynamo_compiling():
            return self._function(*args, **kwargs)
        why = active_transformation()
        if why is not None:
            return self._eager(RunsEager(why), args, kwargs)
        if self._fallback is not None:
            return self._call_with_fallback(self._fallback, args, kwargs)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            found = self._programs.find(args, kwargs)
            if (target := self._compiler.target) is not None:
                raise RunsEager(
                    f"the program was compiled for {target}, and does not run here",
                    "Write it to a file with save(path), and load that where the GPU is.",
                )
            return self._programs.run(found, args, kwargs)
        except RunsEager as call:
            eager = call
        except (RunError, CaptureError) as error:
            if error.location is None:  # errors about sizes or memory name no line
                error.location = self._compiler.definition_location()
            raise
        except RuntimeError:  # such as the missing shape of a nested tensor: name the reason
            check_inputs([x for x in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)])
            raise
        return self._eager(eager, args, kwargs)

    def _prepare(self, args: tuple[Any, ...]) -> None:
        """Compile for these arguments without calling. If a call with grad mode on would need
        gradients, compile for calls with grad mode off."""
        try:
            try:
                self._programs.find(args, {})
            except RequiresGrad:
                with torch.no_grad():
                    self._programs.find(args, {})
        except RunsEager as call:
            self._notices.eager(call)
        except StrettoError as error:
            if self._fallback is None or not is_compile_failure(error):
                raise

    def _eager(self, why: RunsEager, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._notices.eager(why)
        return self._function(*args, **kwargs)

    def _call_with_fallback(
        self, fallback: Fallback, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the call compiled, or cut into pieces if its signature could not be compiled, now or
        in an earlier call."""
        try:
            key, _ = self._programs.key(args, kwargs)
        except RunsEager as call:
            eager = call
        else:
            if key not in fallback.reasons:
                try:
                    return self._call(args, kwargs)
                except StrettoError as error:
                    if not is_compile_failure(error):
                        raise
                    fallback.note(key, error)
            return fallback.run(self._function, args, kwargs)
        return self._eager(eager, args, kwargs)

    def _compile_part(self, function: Callable[..., Any], *, segment: bool) -> Compiled:
        """Compile a function that Python code calls, or a segment of one, with the settings of
        this object."""
        assert self._fallback is not None
        settings = (self._backend, self._options, self._dynamic)
        return Compiled(function, *settings, not segment, self._fallback.pieces)

    def run_segment(self, args: tuple[Any, ...]) -> Any:
        """Run a segment's program. Raises NotNative if the segment has to run in Python, and the
        compile's error if it cannot be compiled."""
        try:
            found = self._programs.find(args, {})
        except RunsEager as call:
            raise RunInPython(str(call)) from None
        try:
            return self._programs.run(found, args, {})
        except RunError as error:
            raise RunInPython(f"the program raised {error}") from None
        except StrettoError:
            raise
        except Exception as error:  # the function's own exception, raised again by Python
            raise RunInPython(f"the program raised {error!r}") from None

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a compiled method to its instance. All instances share one table of signatures."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Pickle or copy without the programs; they are built again, from the build cache.

        A decorated function is pickled by its qualified name, as plain functions are.
        """
        name = vars(self).get("__qualname__", "")
        if "<" not in name and self._module is None:
            found: Any = sys.modules.get(vars(self).get("__module__", ""))
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is self:
                return name
        target = self._compiler.target
        kept = (self._backend, self._options, self._dynamic, self._fallback is not None, target)
        return _compile_again, (self._function, *kept)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The module's class for a compiled module, so that `isinstance` holds and other modules
        register it as a child."""
        module = vars(self).get("_module")
        return Compiled if module is None else module.__class__

    def __getattr__(self, name: str) -> Any:
        if name in _COPY_HOOKS:
            raise AttributeError(name)
        found = getattr(self.__dict__["_function"], name)
        module = self.__dict__["_module"]
        if (
            module is None
            or getattr(found, "__self__", None) is not module
            or name in _PASSED_THROUGH
        ):
            return found
        return functools.partial(self._call_method, found)

    def _call_method(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the module. If it returns the module, as `eval()` does, return the
        compiled one."""
        result = method(*args, **kwargs)
        return self if result is self._module else result

    def __setattr__(self, name: str, value: Any) -> None:
        """Set public attributes on the module, so that they have an effect."""
        if name.startswith("_") or self._module is None:
            object.__setattr__(self, name, value)
        else:
            setattr(self._module, name, value)

    def __repr__(self) -> str:
        return f"<stretto.compile of {self._function!r}>"

    # ---- what users ask ----------------------------------------------------------------------
    @property
    def signatures(self) -> tuple[Entry, ...]:
        """All compiled signatures, oldest first."""
        return self._programs.entries

    def only_entry(self) -> Entry | None:
        """Return the only entry if `is_current()` is the one check that a call with tensors needs;
        else None."""
        if len(self.signatures) != 1:
            return None
        (entry,) = self.signatures
        needs_more = entry.needs_more_than_key or entry.takes_ints or entry.fits_sizes is not None
        return None if needs_more or is_settled(entry.captured.program) else entry

    def synchronize(self) -> None:
        """Wait until all calls on GPUs have ended. Raises RunError for a failed call, which
        otherwise the next call would raise."""
        for entry in self.signatures:
            entry.executable.synchronize()

    def save(self, path: str | Path, *, weights: bool = True) -> None:
        """Write everything compiled so far to a file for `stretto.load`: the programs, and the
        machine code of those for GPUs.

        weights: True includes the tensors of the module's `state_dict()`, or for a function all
        tensors that it has by name. Without them, pass them to `stretto.load(path, tensors=...)`.

        For a module, only the signatures of its current mode (training or eval) are written. Raises
        SaveError if a program depends on objects that a file cannot hold.
        """
        from stretto.call.save import save

        save(self._function, self.signatures, self._options, path, weights)

    @property
    def is_used(self) -> bool:
        """True once a call has compiled a program, or has run in pieces."""
        return bool(self.signatures or (self._fallback and self._fallback.calls))

    def explain(self) -> str:
        """Report, per signature, what was captured, fused, scheduled and built, and what was not
        and why."""
        from stretto.tools.explain import signature_sections

        name, eager = callable_name(self._function), self._notices.eager_calls
        fallback = self._fallback if self._fallback and self._fallback.calls else None
        if not (self.signatures or eager or fallback):
            then = "call it once, or give stretto.compile its inputs"
            return f"{name}: nothing compiled yet; {then}\n"
        parts = [f"{name}: {counted(len(self.signatures), 'signature')} compiled", *eager]
        parts += [f"each size has its own program: {why}" for why in self._programs.refused]
        signatures = signature_sections(self.signatures, parameter_names(self._function))
        is_whole = self._surroundings is Caller.CUT
        in_python = [] if fallback is None else [fallback.section(is_whole=is_whole)]
        return explanation((*parts, *signatures, *in_python))

    def timeline(self, path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Profile one run and draw it: tasks on units over time, as `.html`, `.json` (Perfetto) or
        `.png`.

        Without further arguments the last compiled signature runs on the inputs it was compiled
        with. Raises BuildError if nothing has been compiled yet.
        """
        from stretto.tools.timeline import write_timeline

        if args or kwargs:
            self(*args, **kwargs)
        last = self._programs.last
        if last is None:
            raise BuildError(
                "nothing has been compiled yet", remedy="call the function once, or give its inputs"
            )
        write_timeline(last, self._options, path)


def _compile_again(
    function: Callable[..., Any],
    backend: str,
    options: Options,
    dynamic: bool | None = None,
    fallback: bool = False,
    target: str | None = None,
) -> Compiled:
    return Compiled(function, backend, options, dynamic, fallback, target=target)


@overload
def compile(
    function: Callable[..., Any],
    example_inputs: Sequence[Any] | None = None,
    *,
    backend: str = AUTO,
    options: Options | None = None,
    dynamic: bool | None = None,
    fallback: bool = False,
    target: str | None = None,
) -> Compiled: ...
@overload
def compile(
    function: None = None,
    example_inputs: Sequence[Any] | None = None,
    *,
    backend: str = AUTO,
    options: Options | None = None,
    dynamic: bool | None = None,
    fallback: bool = False,
    target: str | None = None,
) -> Callable[[Callable[..., Any]], Compiled]: ...
def compile(
    function: Callable[..., Any] | None = None,
    example_inputs: Sequence[Any] | None = None,
    *,
    backend: str = AUTO,
    options: Options | None = None,
    dynamic: bool | None = None,
    fallback: bool = False,
    target: str | None = None,
) -> Compiled | Callable[[Callable[..., Any]], Compiled]:
    """Compile a function or `nn.Module` that uses ordinary Python control flow; a drop-in for it.

    function: what to compile; without it a decorator is returned.
    example_inputs: positional arguments. If given, their signature is compiled now instead
        of at the first call.
    backend: the machine that runs the programs; "auto" chooses by the devices of the inputs,
        "interpreter" is the oracle. `stretto doctor` lists all,
        `stretto.machines.registry.register` adds one.
    options: see `Options`.
    fallback: run statements that cannot be compiled in Python, and the statements between
        them as separate programs; `explain()` counts them and gives the reasons. A bug of
        stretto that ends a compile is treated in the same way, with a warning. Without
        fallback a CaptureError, or the error of the stage that failed, is raised. Errors of
        a run are raised in any case.
    dynamic: whether sizes may differ from call to call. None: the first program is made for
        the sizes of the first call; dims, and ints among the arguments, that differ later
        become symbols of a second program, for all further sizes. True: all of them are
        symbols from the start. False: each size has its own program.
        `torch._dynamo.mark_dynamic` and `mark_static` set this for single dims.
    target: a GPU that need not be in this machine, by name, as "h100", or by its
        architecture, as "sm_90". The function, its inputs and its weights stay on the CPU; a
        call compiles its signature, if new, for that GPU, and runs eager, with a warning.
        `save` writes what was compiled to a file, machine code included, and `stretto.load`
        runs it where the GPU is.

    The result takes and returns what the original does. One program is compiled per signature:
    dtypes and devices of tensors, values of everything else. Raises ValueError for an unknown
    backend, and at a call CaptureError, BuildError or RunError with the user's source line and a
    remedy.
    """
    require_backend(backend)
    settings = options if options is not None else Options()
    if not isinstance(settings, Options):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"options must be stretto.Options(...), not {type(settings).__name__}")
    if dynamic not in (None, True, False):
        raise TypeError(f"dynamic must be None, True or False, not {dynamic!r}")
    if example_inputs is not None and not isinstance(example_inputs, tuple | list):
        kind = type(example_inputs).__name__
        raise TypeError(f"example_inputs must be a tuple of positional arguments, not {kind}")
    if function is None:

        def decorate(decorated: Callable[..., Any]) -> Compiled:
            return compile(
                decorated,
                example_inputs,
                backend=backend,
                options=settings,
                dynamic=dynamic,
                fallback=fallback,
                target=target,
            )

        return decorate
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        name = function.__name__
        raise TypeError(f"stretto.compile takes a module, not its class: stretto.compile({name}())")
    if not callable(function):
        raise TypeError(
            f"stretto.compile takes a function or an nn.Module, not {type(function).__name__}"
        )
    if target is not None:
        _require_target(target, settings.units, backend, fallback)
    compiled = Compiled(function, backend, settings, dynamic, fallback, target=target)
    if example_inputs is not None:
        compiled._prepare(tuple(example_inputs))  # pyright: ignore[reportPrivateUsage]
    return compiled


def _require_target(target: str, units: int | None, backend: str, fallback: bool) -> None:
    """Raise ValueError unless programs compiled for the target can be saved and loaded again."""
    if fallback:
        raise ValueError("a function with a target cannot have fallback=True: no file holds Python")
    machine = target_machine(target, units, backend)
    if not machine.makes_files:
        raise ValueError(f"stretto compiles for {target}, but has nothing that runs it there")
