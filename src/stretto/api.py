"""`stretto.compile`: the drop-in wrapper around a function or module, with its signatures."""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.utils import _pytree as pytree

from stretto.build import build
from stretto.entry import Entry, check_dense, check_written
from stretto.errors import (
    BuildError,
    CaptureError,
    CodegenError,
    OtherProgram,
    RunError,
    ScheduleError,
    SourceLocation,
    StrettoError,
    StrettoWarning,
    VerifyError,
)
from stretto.fallback import Fallback, NotNative, Pieces
from stretto.families import (
    CallForm,
    Family,
    SizeKey,
    check_ranks,
    fitting,
    is_size_key,
    matching,
    size_key,
)
from stretto.frontends.python import (
    ArgumentsChange,
    Captured,
    Reading,
    Surroundings,
    capture,
    capturing,
    is_structural,
)
from stretto.frontends.python.control.settled import is_settled
from stretto.frontends.python.results.signature import key_of
from stretto.frontends.python.tracing.admission import (
    active_transformation,
    check_inputs,
    foreign_input,
)
from stretto.frontends.python.tracing.locations import definition
from stretto.keys import BY_STRUCTURE, Key, is_by_structure, varying
from stretto.locks import ForkSafeLock
from stretto.options import Options
from stretto.placement import AUTO, choose_machine, device_of, require_backend
from stretto.progress import LOG, compiling, print_log, stage
from stretto.runtime.check import Checker

if TYPE_CHECKING:
    from pathlib import Path

_TENSORS_ONLY = {torch.Tensor}

_OF_COPIES = frozenset(("__copy__", "__deepcopy__", "__setstate__"))
"""Methods that, if the original has them, would make a copy that is not compiled."""

_READERS = frozenset(
    (
        "buffers", "children", "modules", "named_buffers", "named_children", "named_modules",
        "named_parameters", "parameters", "state_dict",
    )
)  # fmt: skip
"""Methods of modules that never return the module. Dynamo looks for the very methods of torch."""

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_REFUSALS = (BuildError, CodegenError, ScheduleError, VerifyError)
"""What building raises where a program cannot be made, or not be proved, for all sizes. Any other
error of a stage is a defect, and is raised."""

_ROUNDS = 20
"""How often a call looks again at objects that other threads change meanwhile."""


print_log()


class Compiled:
    """A function or module that runs compiled. Made by `stretto.compile`; other attributes are the
    original's.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        backend: str,
        options: Options,
        dynamic: bool | None = None,
        fallback: bool = False,
        pieces: Pieces | None = None,
    ) -> None:
        """pieces: those that the function is one of; else those of its own calls."""
        self._module = function if isinstance(function, torch.nn.Module) else None
        self._function = function
        self._backend = backend
        self._options = options
        self._dynamic = dynamic
        self._fallback = Fallback(pieces or Pieces(self._piece)) if fallback else None
        self._surroundings = Surroundings.CUT if fallback else Surroundings.COMPILED
        if pieces is not None:
            self._surroundings = Surroundings.PYTHON
        self._entries: dict[Key, Entry] = {}
        self._families: dict[Key, Family] = {}
        self._quick: list[tuple[Callable[[Key], bool], Entry]] = []
        self._cuts = frozenset[SourceLocation]()
        self._settling = set[SourceLocation]()
        self._structures: dict[Key, Key | bool] = {}
        """By families of calls with objects: the only ones passed so far, or whether there may be a
        program for any of their classes."""
        self._lock = ForkSafeLock()
        self._warned_eager: set[str] = set()
        self._warned_signatures = False
        self._last: Entry | None = None
        if self._module is None:
            functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_dynamo_compiling():
            return self._function(*args, **kwargs)
        why = active_transformation()
        if why is not None:
            self._warn_eager(why)
            return self._function(*args, **kwargs)
        if self._fallback is not None:
            return self._call_with_fallback(self._fallback, args, kwargs)
        return self._call(args, kwargs)

    def _call_with_fallback(
        self, fallback: Fallback, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What cannot be captured runs in Python, also in later calls of the same signature."""
        leaves, tensors, why = self._general_key(args, kwargs)
        if why is None and torch.is_grad_enabled() and self._is_training(tensors):
            why = _REQUIRES_GRAD
        if why is not None:
            self._warn_eager(why, _NO_GRAD if why == _REQUIRES_GRAD else "")
            return self._function(*args, **kwargs)
        key: Key = (self._module is not None and self._module.training, leaves)
        if key not in fallback.reasons:
            try:
                return self._call(args, kwargs)
            except CaptureError as error:
                fallback.reasons[key] = error
        return fallback.run(self._function, args, kwargs)

    def _piece(self, function: Callable[..., Any], *, segment: bool) -> Compiled:
        """A function that is called from Python, or a segment."""
        assert self._fallback is not None
        settings = (self._backend, self._options, self._dynamic)
        return Compiled(function, *settings, not segment, self._fallback.pieces)

    def run_segment(self, args: tuple[Any, ...]) -> Any:
        """A call of a segment. Raises NotNative where it has to run in Python, CaptureError where
        it cannot be captured."""
        entry, tensors, reading = self._entry(args, {})
        if entry is None:
            raise NotNative("as gradients are wanted, or for such arguments")
        try:
            return self._run(entry, tensors, reading, (args, {}))
        except RunError as error:
            raise NotNative(f"the program raised {error}") from None
        except StrettoError:
            raise
        except Exception as error:  # as the function's own
            raise NotNative(f"the program raised {error!r}") from None

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = None
        try:
            entry, tensors, reading = self._entry(args, kwargs)
            if entry is not None:
                return self._run(entry, tensors, reading, (args, kwargs))
        except (RunError, CaptureError, RuntimeError) as error:
            if entry is not None and isinstance(error, RunError) and self._learn(entry, error):
                return self._call(args, kwargs)
            if isinstance(error, RunError | CaptureError) and error.location is None:
                error.location = self._place()  # of sizes and of memory no line is at fault
            if isinstance(error, RuntimeError):  # as of shapes that a nested tensor does not have
                check_inputs([x for x in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)])
            raise
        return self._function(*args, **kwargs)

    def _run(
        self,
        entry: Entry,
        tensors: Sequence[torch.Tensor],
        reading: Reading | None,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> Any:
        """Runs an entry, or, where a condition that chooses a program goes another way, that for
        this way. Each further one agrees with one condition more."""
        while True:
            try:
                return entry(tensors, reading)
            except OtherProgram as error:
                key = ((OtherProgram.__name__, error.message), entry.key)
            general, tensors, _ = self._general_key(*arguments)
            form = CallForm.of(general)
            found = self._entries.get(key)
            if found is None or not found.is_current():
                found = self._compile(key, tensors, *arguments)
            tensors = found.with_ints(tensors, form.ints)
            found, reading = self._varying(found, key, tensors, *arguments, form)
            if found is None:
                return self._function(*arguments[0], **arguments[1])
            self._last = entry = found

    def _place(self) -> SourceLocation | None:
        """Where the function is defined."""
        function: Any = self._function if self._module is None else type(self._module).forward
        code = getattr(inspect.unwrap(function), "__code__", None)
        return None if code is None else definition(code)

    def _learn(self, entry: Entry, error: RunError) -> bool:
        """Whether the run stopped where a slice reaches beyond its dim, which its capture took for
        impossible: then the function is captured again, with slices there that are cut."""
        place = error.location
        if place is None or place not in entry.captured.windows:
            return False
        LOG.info(
            "%s is compiled again: the slice at %s reaches beyond its dim", self._name(), place
        )
        self._cuts |= {place}
        entry.is_refuted = True
        return True

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Compiled methods: bound to the instance, one table of signatures per function."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Pickled and copied without its programs, which are made again, from the build cache.

        A decorated function is found by its name, as functions are."""
        name = vars(self).get("__qualname__", "")
        if "<" not in name and self._module is None:
            found: Any = sys.modules.get(vars(self).get("__module__", ""))
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is self:
                return name
        kept = (self._backend, self._options, self._dynamic, self._fallback is not None)
        return _compile_again, (self._function, *kept)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """For `isinstance`, a compiled module is a module: others register it as their child."""
        module = vars(self).get("_module")
        return Compiled if module is None else module.__class__

    def __getattr__(self, name: str) -> Any:
        if name in _OF_COPIES:
            raise AttributeError(name)
        found = getattr(self.__dict__["_function"], name)
        module = self.__dict__["_module"]
        if module is None or getattr(found, "__self__", None) is not module or name in _READERS:
            return found
        return functools.partial(self._call_method, found)

    def _call_method(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the module; for one that returns the module, as `eval()`, that is
        the compiled one."""
        result = method(*args, **kwargs)
        return self if result is self._module else result

    def __setattr__(self, name: str, value: Any) -> None:
        """Public attributes are those of the module, so that setting one has an effect."""
        if name.startswith("_") or self._module is None:
            object.__setattr__(self, name, value)
        else:
            setattr(self._module, name, value)

    def __repr__(self) -> str:
        return f"<stretto.compile of {self._function!r}>"

    # ---- signatures --------------------------------------------------------------------------
    def _entry(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Entry | None, Sequence[torch.Tensor], Reading | None]:
        key: Key
        tensors: Sequence[torch.Tensor] = args
        if not kwargs and set(map(type, args)) == _TENSORS_ONLY:
            key = tuple([(a.shape, a.dtype, a.device) for a in args])
        else:
            key, tensors, why = self._general_key(args, kwargs)
            if why is not None:
                self._warn_eager(why)
                return None, tensors, None
        if torch.is_grad_enabled() and self._is_training(tensors):
            self._warn_eager(_REQUIRES_GRAD, _NO_GRAD)
            return None, tensors, None
        if self._module is not None:
            key = (self._module.training, key)
        if tensors is not args and key not in self._entries:
            wide = self._by_structure(args, kwargs)
            if wide is not None and self._is_wide(wide):
                try:
                    return self._found(wide, tensors, args, kwargs)
                except CaptureError:
                    self._structures[CallForm.of(wide).family] = False
        try:
            return self._found(key, tensors, args, kwargs)
        except ArgumentsChange:
            self._entries.pop(key, None)
            wide = self._by_structure(args, kwargs)
            self._structures[CallForm.of(wide or ()).family] = True
        return self._entry(args, kwargs)

    def _found(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Entry | None, Sequence[torch.Tensor], Reading | None]:
        """The entry of a key, compiled if there is none yet; the tensors that it takes, and what
        objects hold."""
        entry, form = self._entries.get(key), None
        if entry is None and tensors is args:
            entry = next((found for matches, found in self._quick if matches(key)), None)
            key = key if entry is None else entry.key
        if entry is None and self._dynamic is not False:
            form = CallForm.of(key)
            key, entry = self._by_sizes(key, form, tensors, (args, kwargs))
        if entry is None or not entry.is_current():
            entry = self._compile(key, tensors, args, kwargs)
            self._remember_state(form, entry)
        if form is not None and entry.takes_ints:
            tensors = entry.with_ints(tensors, form.ints)
        reading = None
        if entry.varies:
            entry, reading = self._varying(entry, key, tensors, args, kwargs, form)
        self._last = entry
        return entry, tensors, reading

    def _by_structure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key | None:
        """The key for any objects of the same classes, if there are objects. It is used once others
        were passed, and for objects that the function changes: they will hold something else.

        Where no program can be made for them, each object has its own.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        objects = tuple(key_of(leaf) for leaf in leaves if is_structural(leaf))
        if not objects:
            return None
        parts = (type(x) if is_structural(x) else key_of(x) for x in leaves)
        wide = (BY_STRUCTURE, self._module is not None and self._module.training, spec, *parts)
        family = CallForm.of(wide).family
        if self._structures.setdefault(family, objects) not in (True, False, objects):
            self._structures[family] = True
        return wide

    def _may_be_wide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        wide = self._by_structure(args, kwargs)
        return wide is not None and self._structures[CallForm.of(wide).family] is not False

    def _is_wide(self, wide: Key) -> bool:
        """Whether calls with any objects of the same classes share programs."""
        return self._structures.get(CallForm.of(wide).family) is True

    def _remember_state(self, form: CallForm | None, entry: Entry) -> None:
        """Lets later calls find programs for other sizes of what objects held in this one."""
        state = entry.captured.objects
        outer = None if form is None else self._families.get(form.family)
        if not state or not state.shapes or form is None or form.held:
            return
        if outer is not None:
            made = form.holding(state.key, state.shapes)
            if made.family not in self._families:
                self._families[made.family] = found = Family(made, state, outer)
                outer.inner.append(found)

    def _by_held_sizes(
        self,
        family: Family,
        key: Key,
        form: CallForm,
        tensors: Sequence[torch.Tensor],
        arguments: Any,
    ) -> tuple[Any, Entry | None]:
        """The key and the entry of a program for many sizes of what objects hold, or nothing."""
        for inner in family.inner:
            assert inner.state is not None
            reading = inner.state.read(tensors, arguments)
            if reading.key == inner.state.key and not reading.is_traced:
                longer = ((reading.key, reading.shapes), key)
                held = form.holding(reading.key, reading.shapes)
                return self._by_sizes(longer, held, tensors, arguments)
        return key, None

    def _by_sizes(
        self, key: Key, form: CallForm, tensors: Sequence[torch.Tensor], arguments: Any
    ) -> tuple[Any, Entry | None]:
        """The key and the entry of a program for many sizes, where there is one or may be one.

        Where none can be made, each size has its own program, as it has in the first call.
        """
        family = self._families.get(form.family)
        if family is None:
            check_ranks(form, self._families.values())
            family = self._families[form.family] = Family(form)
        found: Any = family.find(form)
        if found is not None:
            return found, self._entries.get(found)
        longer, entry = self._by_held_sizes(family, key, form, tensors, arguments)
        if entry is not None:
            return longer, entry
        family.check_declared(form)
        if family.refused is not None:
            return key, None
        plan = family.plan(form, tensors, self._dynamic)
        if not plan.symbols:
            return key, None
        if not choose_machine(self._backend, tensors).takes_symbols:
            family.refused = "the machine runs programs of fixed sizes only"
            if self._dynamic or family.declared:
                raise BuildError(family.refused, remedy="compile with dynamic=False")
            return key, None
        wanted: Any = SizeKey(family, plan)
        try:
            entry = self._compile(wanted, tensors, *arguments)
        except Exception as error:
            if error is not family.uncaptured and not isinstance(error, _REFUSALS):
                raise
            if self._dynamic or family.declared:
                if isinstance(error, VerifyError):
                    raise BuildError(
                        f"no program for all sizes can be made: {error.message}",
                        location=error.location,
                        remedy="compile with dynamic=None or dynamic=False",
                    ) from error
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            try:
                entry = self._compile(key, tensors, *arguments)
            except CaptureError:
                family.refused = reason
                raise
            family.refused = reason
            LOG.info("%s has a program for each size: %s", self._name(), family.refused)
            return key, entry
        self._remember_state(form, entry)
        if wanted in family.programs:
            return wanted, entry
        self._entries[key] = self._entries.pop(wanted)
        return key, entry

    def _varying(
        self,
        found: Entry | None,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Any,
        form: CallForm | None,
    ) -> tuple[Entry | None, Reading | None]:
        """The entry for what objects hold, and for the inputs that share memory; what they hold.

        Entries for other contents and other shared memory are found by longer keys; `found` is that
        of `key`.
        """
        first = key
        for _ in range(_ROUNDS):
            entry, found = found, None
            if entry is None:
                entry = self._entries.get(key)
                if entry is None or not entry.is_current():
                    entry = self._compile(key, tensors, args, kwargs)
                    self._remember_state(form, entry)
            if (
                entry.fits_sizes is not None
                and not entry.takes_held_sizes
                and form is not None
                and not entry.fits_sizes(form.shapes, form.ints, ())
            ):
                key = ("sizes", key)
                continue
            reading = entry.read(tensors, args, kwargs)
            if reading is not None and reading.is_traced:
                with capturing():  # another thread captures
                    key = first
                continue
            if reading is not None and torch.is_grad_enabled() and _trains(reading.tensors):
                self._warn_eager(_HELD_REQUIRES_GRAD, _NO_GRAD)
                return None, None
            if not entry.fits(reading, form):
                assert reading is not None
                key = ((reading.key, reading.shapes), key)
                if self._dynamic is not False:
                    form = form or CallForm.of(first)
                    held = form.holding(reading.key, reading.shapes)
                    if held.family in self._families:
                        key, found = self._by_sizes(key, held, tensors, (args, kwargs))
                continue
            if not entry.checks_inputs:
                return entry, reading
            variant = entry.variant(tensors, reading)
            if variant == entry.compiled_variant:
                return entry, reading
            key = (variant, key)
        raise CaptureError(
            "objects that the compiled function changes are changed by another thread",
            remedy="let one thread at a time call it, or give each its own objects",
        )

    def _is_training(self, tensors: Sequence[torch.Tensor]) -> bool:
        """With grad mode on: would eager build a graph that the caller means to use?

        Inputs that require grad say so; so do parameters of a module in training mode.
        """
        if _trains(tensors):
            return True
        module = self._module
        return module is not None and module.training and _has_trainable(module)

    def _general_key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Key, list[torch.Tensor], str | None]:
        """The key, the tensors in it, and a reason to run eager."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        why = foreign_input(leaves)
        if why is not None:
            return (), tensors, why
        return (spec, *(key_of(leaf) for leaf in leaves)), tensors, None

    def _compile(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Entry:
        with self._lock, compiling(self._name()):
            stale = self._entries.get(key)
            if stale is not None and stale.is_current():
                return stale
            machine = choose_machine(self._backend, tensors)
            machine.require_ready()
            machine.prepare(self._options)
            start = time.perf_counter()
            device_of(machine, tensors)
            with stage("capture"), capturing():
                stale = self._entries.get(key)
                if stale is not None and stale.is_current():
                    return stale
                base = size_key(key)
                wide = is_by_structure(key if base is None else base.family.first.family)
                by_structure = wide or (None if self._may_be_wide(args, kwargs) else False)
                settles = machine.stops_at_once
                with nullcontext() if base is None else base.family.capturing():
                    captured = self._capture(args, kwargs, base, by_structure, settles=settles)
                    reading = None
                    if captured.objects is not None:
                        reading = captured.objects.read(tensors, (args, kwargs))
                        check_inputs(reading.tensors)
                    check_dense(captured, [*tensors, *(() if reading is None else reading.tensors)])
            device = device_of(machine, tensors, captured)
            traced = time.perf_counter() - start
            stages = build(captured.program, machine, self._options, device)
            assert stages.executable is not None
            stages.seconds = {"capture": traced, **stages.seconds}
            if self._options.remarks:
                from stretto.tools.explain import remarks_text

                print(remarks_text(stages), end="", file=sys.stderr)
            seconds = time.perf_counter() - start
            entry = Entry(key, captured, stages.executable, stages, seconds, (args, kwargs))
            if base is not None and captured.sizes is not None:
                base.family.settle(base, captured.sizes, tensors)
                ints = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if type(leaf) is int]
                entry.int_count = len(ints)
                tensors = entry.with_ints(tensors, ints)
                if captured.sizes.symbols:
                    holding = base.family.state is not None
                    fits = fitting(captured.sizes, ints, holding=holding)
                    entry.is_for(fits, holding=holding)
            if self._options.check and not machine.is_oracle:
                entry.checker = Checker(captured.program, self._options.max_depth)
            check_written(entry, tensors, reading)
            if entry.checks_inputs:
                entry.compiled_variant = entry.variant(tensors, reading)
            self._entries[key] = entry
            if base is not None and entry.fits_sizes is not None and is_size_key(key):
                base.family.enter(base, entry.fits_sizes, captured.objects)
                self._find_quickly(entry, base.family)
            if stale is not None:
                entry.builds += stale.builds
                self._warn_stale(entry.builds, stale.watch.changed() or "the content of a tensor")
            self._warn_signatures()
            return entry

    def _capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        base: SizeKey | None,
        by_structure: bool | None,
        *,
        settles: bool,
    ) -> Captured:
        """The function, captured. What can run in Python instead does so where the capture raises
        an exception: the one of Python code that takes no traced values does not come again, the
        one of the function itself does.
        """
        try:
            return capture(
                self._function,
                args,
                kwargs,
                self._options,
                by_structure=by_structure,
                sizes=None if base is None else base.plan,
                cuts=self._cuts,
                settling=self._settling if settles else None,
                surroundings=self._surroundings,
                state=None if base is None else base.family.state,
            )
        except StrettoError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__} was raised while it was captured: {error}"
            if self._fallback is not None:
                raise CaptureError(reason, location=self._place()) from error
            if self._surroundings is Surroundings.PYTHON:  # a segment
                raise NotNative(reason) from error
            raise

    def _name(self) -> str:
        """What messages call the function or module."""
        if self._module is not None:
            return type(self._module).__name__
        return getattr(self._function, "__qualname__", type(self._function).__name__)

    def _find_quickly(self, entry: Entry, family: Family) -> None:
        """Lets calls with tensors only find the entry without a key of their own."""
        self._quick = [item for item in self._quick if item[1].key is not entry.key]
        assert entry.captured.sizes is not None
        matches = matching(family.first.family, entry.captured.sizes)
        if matches is not None and not entry.varies:
            self._quick.append((matches, entry))

    # ---- warnings ----------------------------------------------------------------------------
    def _warn_eager(self, why: str, remedy: str = "") -> None:
        """Once for each reason."""
        if why not in self._warned_eager:
            self._warned_eager.add(why)
            text = f"{why}: running eager. {remedy}".rstrip()
            _warn(text)

    def _warn_signatures(self) -> None:
        limit = self._options.max_signatures_before_warning
        if len(self._entries) > limit and not self._warned_signatures:
            self._warned_signatures = True
            _warn(
                f"{len(self._entries)} signatures compiled: {varying(list(self._entries))}. Each "
                "new one is compiled from the start; pad or bucket what varies, or raise "
                "Options(max_signatures_before_warning=...)."
            )

    def _warn_stale(self, builds: int, changed: str) -> None:
        if builds == self._options.max_signatures_before_warning + 1:
            _warn(
                f"compiled {builds} times for the same shapes, because what it was compiled with "
                f"changes between calls: {changed}. Pass it as an argument, as a tensor."
            )

    # ---- what users ask ----------------------------------------------------------------------
    @property
    def signatures(self) -> tuple[Entry, ...]:
        """Everything compiled so far, oldest first."""
        return tuple(self._entries.values())

    def only_entry(self) -> Entry | None:
        """The one signature, if a call with such tensors needs no more than that it is current."""
        if len(self._entries) != 1:
            return None
        (entry,) = self._entries.values()
        needs_more = entry.varies or entry.takes_ints or entry.fits_sizes is not None
        return None if needs_more or is_settled(entry.captured.program) else entry

    def synchronize(self) -> None:
        """Waits until all calls on GPUs have ended. Raises RunError for one that failed, which
        otherwise the next call does."""
        for entry in self.signatures:
            entry.executable.synchronize()

    def save(self, path: str | Path) -> None:
        """Writes everything compiled so far to a file, with the weights, for `stretto.load`.

        Of a module, what was compiled for the mode that it is in. Raises SaveError where a program
        depends on objects that a file cannot hold."""
        from stretto.saving.describe import save

        save(self, path)

    def explain(self) -> str:
        """What was captured, fused, scheduled and built, per signature, and what not and why."""
        from stretto.tools.explain import explain

        return explain(self)

    def timeline(self, path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Profiles one run and draws it: tasks on units over time, as `.html`, `.json` (Perfetto)
        or `.png`.

        Without further arguments the last compiled signature runs on the inputs it was compiled
        with.
        """
        from stretto.tools.timeline import write_timeline

        if args or kwargs:
            self(*args, **kwargs)
        if self._last is None:
            raise BuildError(
                "nothing has been compiled yet", remedy="call the function once, or give its inputs"
            )
        write_timeline(self._last, self._options, path)


def _compile_again(
    function: Callable[..., Any],
    backend: str,
    options: Options,
    dynamic: bool | None = None,
    fallback: bool = False,
) -> Compiled:
    return Compiled(function, backend, options, dynamic, fallback)


def _warn(text: str) -> None:
    """A StrettoWarning at the line that called the compiled function."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, StrettoWarning, stacklevel=level)


_REQUIRES_GRAD = (
    "an input, or a parameter of a module in training mode, requires grad and training is not "
    "supported yet"
)
_HELD_REQUIRES_GRAD = (
    "a tensor that an object holds requires grad and training is not supported yet"
)
_NO_GRAD = "Call it under torch.no_grad() to run it compiled."


def _trains(tensors: Iterable[torch.Tensor]) -> bool:
    return any(tensor.requires_grad for tensor in tensors)


def _has_trainable(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


@overload
def compile(
    function: Callable[..., Any],
    example_inputs: Sequence[Any] | None = None,
    *,
    backend: str = AUTO,
    options: Options | None = None,
    dynamic: bool | None = None,
    fallback: bool = False,
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
) -> Callable[[Callable[..., Any]], Compiled]: ...
def compile(
    function: Callable[..., Any] | None = None,
    example_inputs: Sequence[Any] | None = None,
    *,
    backend: str = AUTO,
    options: Options | None = None,
    dynamic: bool | None = None,
    fallback: bool = False,
) -> Compiled | Callable[[Callable[..., Any]], Compiled]:
    """Compiles a function or `nn.Module` that uses ordinary Python control flow; a drop-in for it.

    function: what to compile; without it a decorator is returned.
    example_inputs: positional arguments; given, the signature is compiled now instead of at the
        first call.
    backend: the machine that runs it; "auto" goes by the devices of the inputs, "interpreter" is
        the oracle. `stretto doctor` lists all, `stretto.machines.registry.register` adds one.
    options: see `Options`.
    fallback: a statement that cannot be captured runs in Python, and those before and behind it as
        programs of their own; `explain()` counts and says why. Without it that is a CaptureError.
    dynamic: whether sizes may differ from call to call. None: a program is made for the sizes of
        the first call; what is later seen to differ, of dims and of ints among the arguments,
        becomes a symbol of a second program, for all further sizes. True: all of them are symbols
        from the start. False: each size has its own program. `torch._dynamo.mark_dynamic` and
        `mark_static` say it of single dims.

    The result takes and returns what the original does. One program is compiled per signature:
    dtypes and devices of tensors, values of everything else. Raises ValueError for an
    unknown backend, and at a call CaptureError, BuildError or RunError with the user's source line
    and a remedy.
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
            )

        return decorate
    if not callable(function):
        raise TypeError(
            f"stretto.compile takes a function or an nn.Module, not {type(function).__name__}"
        )
    compiled = Compiled(function, backend, settings, dynamic, fallback)
    if example_inputs is not None:
        try:
            compiled._entry(tuple(example_inputs), {})  # pyright: ignore[reportPrivateUsage]
        except CaptureError:
            if not fallback:
                raise
    return compiled
