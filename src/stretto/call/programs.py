"""The programs of one compiled function, and how a call finds its program.

`Programs.find` looks up the entry for a call, `Programs.run` runs it. The key of a call has what
its program depends on: dtypes, devices and sizes of tensors, values of everything else.

- A program for many sizes is found by its guards, so there is no entry per size (`signatures`).
- At first each object among the arguments has its own program. Once other objects of the same
  classes are passed, or if the function changes its objects, one program serves all objects of
  these classes, under a wide key. If none can be captured, each object keeps its own program.
- A program may depend on more: on what objects hold, on inputs that share memory, or on conditions
  that select among programs. Further programs then have longer keys: pairs of what differs and of
  the shorter key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from stretto.call.compiler import CallArguments, EntryCompiler
from stretto.call.eager import (
    Notices,
    RequiresGrad,
    RunsEager,
    check_gradients,
    is_training,
    recheck_requires_grad,
)
from stretto.call.entry import Entry
from stretto.call.signatures import (
    BY_STRUCTURE,
    CallForm,
    Family,
    Key,
    SizeKey,
    check_ranks,
    is_by_structure,
    is_size_key,
    key_of_call,
    matching,
    size_key,
)
from stretto.errors import (
    BuildError,
    CaptureError,
    CodegenError,
    OtherProgram,
    RaisesInPython,
    RunError,
    ScheduleError,
    VerifyError,
)
from stretto.failures import stage_failures
from stretto.frontends.python import (
    ArgumentsChange,
    GradientsWanted,
    Reading,
    capturing,
    is_structural,
)
from stretto.frontends.python.results.inputs import key_of
from stretto.locks import ForkSafeLock
from stretto.ops.effects import restore
from stretto.progress import LOG, compiling, logged_stage

_TENSORS_ONLY = {torch.Tensor}

_REFUSALS = (BuildError, CodegenError, ScheduleError, VerifyError)
"""Errors of a build if a program cannot be made, or not be proved, for all sizes. Any other error
of a stage is a defect, and is raised."""

_ROUNDS = 20
"""Number of times that a call reads objects again that other threads change meanwhile."""

Found = tuple[Entry, Sequence[torch.Tensor], Reading | None]
"""The entry for a call, the tensors to pass to it, and what the user's objects hold (None without
objects)."""


class WideKey(NamedTuple):
    """A key shared by all calls with objects of the same classes, and the key of its family."""

    key: Key
    family: Key


class Programs:
    """The entries of a compiled function, to which calls add.

    dynamic: as for `stretto.compile`. last: the entry of the last call.
    """

    def __init__(self, compiler: EntryCompiler, dynamic: bool | None, notices: Notices) -> None:
        function = compiler.function
        self._module = function if isinstance(function, torch.nn.Module) else None
        self._compiler = compiler
        self._dynamic = dynamic
        self._notices = notices
        self._entries: dict[Key, Entry] = {}
        self._families: dict[Key, Family] = {}
        self._objects: dict[Key, Key | bool] = {}
        """By the family of a wide key: the only objects passed so far, True once calls with any
        objects of these classes share programs, False if they cannot."""
        self._eager_checks: dict[Key, Callable[[], None]] = {}
        """By grad mode and key: functions that raise RequiresGrad again while the reason holds for
        which an earlier call ran eager."""
        self._quick: list[tuple[Callable[[Key], bool], Entry]] = []
        """Programs for many sizes, each with a function that tests if a key of tensors matches."""
        self._lock = ForkSafeLock()
        self.last: Entry | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries.values())

    @property
    def refused(self) -> Iterable[str]:
        """Reasons why families of calls have one program per size."""
        families = self._families.values()
        return [family.refused for family in families if family.refused is not None]

    def key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Key, Sequence[torch.Tensor]]:
        """Return the key of a call and the tensors among its arguments. Raises RunsEager for a
        call that no program can serve."""
        key: Key
        tensors: Sequence[torch.Tensor] = args
        if not kwargs and set(map(type, args)) == _TENSORS_ONLY:
            key = tuple([(a.shape, a.dtype, a.device) for a in args])
        else:
            key, tensors, why = key_of_call(args, kwargs)
            if why is not None:
                raise RunsEager(why)
        if torch.is_grad_enabled():
            check_gradients(tensors)
        if self._module is not None:
            key = (is_training(self._module), key)
        return key, tensors

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
        """Return the entry for a call; compile it if there is none. Raises RunsEager."""
        key, tensors = self.key(args, kwargs)
        call = CallArguments(args, kwargs, tensors)
        check = (
            self._eager_checks.get((torch.is_grad_enabled(), key)) if self._eager_checks else None
        )
        if check is not None:
            check()
        try:
            return self._find(key, call)
        except RequiresGrad as eager:
            self._eager_checks[torch.is_grad_enabled(), key] = recheck_requires_grad(eager)
            raise

    def _find(self, key: Key, call: CallArguments) -> Found:
        """Return the entry for the call of a key. Raises RunsEager."""
        tensors, args = call.tensors, call.args
        if tensors is not args and key not in self._entries:
            wide = self._wide_key(call)
            if wide is not None and self._objects[wide.family] is True:
                try:
                    return self._entry_for(wide.key, call)
                except CaptureError:
                    if not self._compiler.may_run_in_python:  # a segment: it is cut instead
                        raise
                    self._objects[wide.family] = False
        try:
            return self._entry_for(key, call)
        except ArgumentsChange:
            self._entries.pop(key, None)
            wide = self._wide_key(call)
            assert wide is not None
            self._objects[wide.family] = True
        return self._find(key, call)

    def run(self, found: Found, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an entry; if its run shows that it is wrong for this call, run the right one.

        A condition that chooses a program may go another way: the program for that way has a
        longer key. A slice may reach beyond its dim: a new program clamps it. If a run comes to
        an exception that shows values, it has changed nothing, and the function runs in Python.
        """
        while True:
            entry, tensors, reading = found
            drawn = entry.states_before()
            try:
                return entry(tensors, reading)
            except OtherProgram as error:
                key = ((OtherProgram.__name__, error.message), entry.key)
            except RaisesInPython:
                if not self._compiler.may_run_in_python:
                    raise
                break
            except RunError as error:
                if not self._compiler.refute_window(entry, error):
                    raise
                key = None
            found = (
                self.find(args, kwargs)
                if key is None
                else self._entry_after_refutation(key, args, kwargs)
            )

        LOG.info("%s runs in Python once, for the sake of an exception", self._compiler.name)
        entry.runs_in_python += 1
        restore(drawn)
        return self._compiler.function(*args, **kwargs)

    def _entry_after_refutation(
        self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Found:
        """Return the entry of a key that a run has shown to be this call's."""
        general, tensors, _ = key_of_call(args, kwargs)
        call, form = CallArguments(args, kwargs, tensors), CallForm.of(general)
        entry = self._current(key) or self._compile(key, call)
        wanted = entry.differentiated(tensors)
        if wanted is not None:
            key, entry = self._in_grad_mode(wanted, key, entry, call)
        found = self._for_objects_and_memory(entry, key, call, form)
        self.last = found[0]
        return found

    def _entry_for(self, key: Key, call: CallArguments) -> Found:
        """Return the entry of a key."""
        entry, form = self._entries.get(key), None
        tensors = call.tensors
        if entry is None and tensors is call.args:
            entry = next((found for matches, found in self._quick if matches(key)), None)
            key = key if entry is None else entry.key
        if entry is None and self._dynamic is not False:
            form = CallForm.of(key)
            key, entry = self._by_sizes(key, form, call)
        if entry is None or not entry.is_current():
            entry = self._compile(key, call)
            self._remember_state(form, entry)
        wanted = entry.differentiated(tensors)
        if wanted is not None:
            key, entry = self._in_grad_mode(wanted, key, entry, call)
        if entry.needs_more_than_key:
            found = self._for_objects_and_memory(entry, key, call, form)
            self.last = found[0]
            return found
        if form is not None:
            tensors = entry.with_ints(tensors, form.ints)
        self.last = entry
        return entry, tensors, None

    def _in_grad_mode(
        self, wanted: torch.Tensor, key: Key, entry: Entry, call: CallArguments
    ) -> tuple[Key, Entry]:
        """Return the entry captured in the current grad mode, for a call whose tensor `wanted`
        requires grad. Raises RequiresGrad if it reads such a tensor with grad mode on."""
        mode = torch.is_grad_enabled()
        if entry.captured.differentiable.mode is not mode:
            key = (("grad mode", mode), key)
            entry = self._current(key) or self._compile(key, call)
            found = entry.differentiated(call.tensors)
            if found is None:
                return key, entry
            wanted = found
        raise RequiresGrad(wanted)

    # ---- objects -----------------------------------------------------------------------------
    def _wide_key(self, call: CallArguments) -> WideKey | None:
        """Return the key for any objects of the same classes; None if no argument is such an
        object."""
        leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
        objects = tuple(key_of(leaf) for leaf in leaves if is_structural(leaf))
        if not objects:
            return None
        mode = self._module is not None and is_training(self._module)
        parts = (type(x) if is_structural(x) else key_of(x) for x in leaves)
        key = (BY_STRUCTURE, mode, spec, *parts)
        family = CallForm.of(key).family
        if self._objects.setdefault(family, objects) not in (True, False, objects):
            self._objects[family] = True
        return WideKey(key, family)

    def _for_objects_and_memory(
        self, found: Entry | None, key: Key, call: CallArguments, form: CallForm | None
    ) -> Found:
        """Return the entry that is right for what objects hold and for the inputs that share
        memory.

        Entries for other contents and other shared memory have longer keys; `found` is the
        entry of `key`. Raises CaptureError if other threads keep changing the objects.
        """
        first = key
        for _ in range(_ROUNDS):
            entry, found = found, None
            if entry is None:
                entry = self._current(key)
                if entry is None:
                    entry = self._compile(key, call)
                    self._remember_state(form, entry)
            if (
                entry.fits_sizes is not None
                and not entry.takes_held_sizes
                and form is not None
                and not entry.fits_sizes(form.shapes, form.ints, ())
            ):
                key = ("sizes", key)
                continue
            tensors = call.tensors if form is None else entry.with_ints(call.tensors, form.ints)
            reading = entry.read(tensors, call.args, call.kwargs)
            if reading is not None and reading.is_traced:
                with capturing():  # another thread captures
                    key = first
                continue
            wanted = None if reading is None else entry.differentiated(reading.tensors)
            if wanted is not None:
                key, found = self._in_grad_mode(wanted, key, entry, call)
                continue
            if not entry.fits(reading, form):
                assert reading is not None
                key = ((reading.key, reading.shapes), key)
                if self._dynamic is not False:
                    form = form or CallForm.of(first)
                    held = form.holding(reading.key, reading.shapes)
                    if held.family in self._families:
                        key, found = self._by_sizes(key, held, call)
                continue
            if not entry.checks_inputs:
                return entry, tensors, reading
            variant = entry.variant(tensors, reading)
            if variant == entry.compiled_variant:
                return entry, tensors, reading
            key = (variant, key)
        raise CaptureError(
            "objects that the compiled function changes are changed by another thread",
            remedy="let one thread at a time call it, or give each its own objects",
        )

    def _remember_state(self, form: CallForm | None, entry: Entry) -> None:
        """Create a family for the sizes of what objects held in this call, so that later calls
        find programs for other sizes."""
        state = entry.captured.objects
        outer = None if form is None else self._families.get(form.family)
        if not state or not state.shapes or form is None or form.held:
            return
        if outer is not None:
            made = form.holding(state.key, state.shapes)
            if made.family not in self._families:
                self._families[made.family] = found = Family(made, state, outer)
                outer.inner.append(found)

    # ---- sizes -------------------------------------------------------------------------------
    def _by_sizes(self, key: Key, form: CallForm, call: CallArguments) -> tuple[Any, Entry | None]:
        """Return the key and the entry of a program for many sizes; None as entry if there is none.

        If none can be made, each size has its own program, as the first call has.
        """
        family = self._families.get(form.family)
        if family is None:
            check_ranks(form, self._families.values())
            family = self._families[form.family] = Family(form)
        found: Any = family.find(form)
        if found is not None:
            return found, self._entries.get(found)
        longer, entry = self._by_held_sizes(family, key, form, call)
        if entry is not None:
            return longer, entry
        family.check_declared(form)
        if family.refused is not None:
            return key, None
        plan = family.plan(form, call.tensors, self._dynamic)
        if not plan.symbols:
            return key, None
        if not self._compiler.machine_for(call.tensors).takes_symbols:
            family.refused = "the machine runs programs of fixed sizes only"
            if self._dynamic or family.declared:
                raise BuildError(family.refused, remedy="compile with dynamic=False")
            return key, None
        return self._for_many_sizes(key, SizeKey(family, plan), form, call)

    def _for_many_sizes(
        self, key: Key, sizes: SizeKey, form: CallForm, call: CallArguments
    ) -> tuple[Any, Entry]:
        """Compile a program for many sizes; if that fails, and unless the user demanded one, one
        for `key`."""
        family = sizes.family
        wanted: Any = sizes
        try:
            entry = self._compile(wanted, call)
            self._check_fits(sizes, entry, form)
        except Exception as error:
            if error is not family.uncaptured and not isinstance(error, _REFUSALS):
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            if family.seen.keep_guards(reason):  # it may succeed without branches on sizes
                return self._for_many_sizes(key, sizes, form, call)
            if self._dynamic or family.declared:
                if isinstance(error, VerifyError):
                    with stage_failures(error.stage or "verify"):
                        raise BuildError(
                            f"no program for all sizes can be made: {error.message}",
                            location=error.location,
                            remedy="compile with dynamic=None or dynamic=False",
                        ) from error
                raise
            try:
                entry = self._compile(key, call)
            except CaptureError:
                family.refused = reason
                raise
            family.refused = reason
            LOG.info("%s has a program for each size: %s", self._compiler.name, reason)
            return key, entry
        self._remember_state(form, entry)
        if sizes in family.programs:
            return wanted, entry
        self._entries[key] = self._entries.pop(wanted)
        return key, entry

    def _check_fits(self, sizes: SizeKey, entry: Entry, form: CallForm) -> None:
        """Remove a program and raise VerifyError if its guards reject the call that it was
        captured for."""
        fits = entry.fits_sizes
        if fits is None or entry.takes_held_sizes or fits(form.shapes, form.ints, ()):
            return
        key: Any = sizes
        self._entries.pop(key, None)
        sizes.family.programs.pop(sizes, None)
        self._quick = [item for item in self._quick if item[1] is not entry]
        raise VerifyError("the program for many sizes is not one for the sizes of this call")

    def _by_held_sizes(
        self, family: Family, key: Key, form: CallForm, call: CallArguments
    ) -> tuple[Any, Entry | None]:
        """Return the key and the entry of a program for many sizes of what objects hold; `key` and
        None if there is none."""
        for inner in family.inner:
            assert inner.state is not None
            reading = inner.state.read(call.tensors, (call.args, call.kwargs))
            if reading.key == inner.state.key and not reading.is_traced:
                longer = ((reading.key, reading.shapes), key)
                held = form.holding(reading.key, reading.shapes)
                return self._by_sizes(longer, held, call)
        return key, None

    # ---- new entries -------------------------------------------------------------------------
    def _current(self, key: Key) -> Entry | None:
        """Return the entry of a key if it is still right; else None."""
        entry = self._entries.get(key)
        return entry if entry is not None and entry.is_current() else None

    def _compile(self, key: Key, call: CallArguments) -> Entry:
        """Compile an entry for a key, unless another thread just did so. Raises RequiresGrad."""
        compiler = self._compiler
        with self._lock, compiling(compiler.name):
            found = self._current(key)
            if found is not None:
                return found
            start = time.perf_counter()
            machine = compiler.machine(call.tensors)
            base = size_key(key)
            with logged_stage("capture"), capturing():
                # The entry may have looked stale while another thread's capture had traced values
                # in the user's objects, so it is checked again under the lock.
                found = self._current(key)
                if found is not None:
                    return found
                share: bool | None = is_by_structure(
                    key if base is None else base.family.first.family
                )
                if not share:
                    wide = self._wide_key(call)
                    can_share = wide is not None and self._objects[wide.family] is not False
                    share = None if can_share else False
                try:
                    captured, reading = compiler.capture(machine, call, base, share)
                except GradientsWanted as signal:
                    raise RequiresGrad(signal.tensor) from None
            entry = compiler.build(machine, captured, reading, call, key, base, start)
            self._enter(entry, base)
            return entry

    def _enter(self, entry: Entry, base: SizeKey | None) -> None:
        """Add an entry, and warn if it replaces a stale one too often."""
        key = entry.key
        stale = self._entries.get(key)
        self._entries[key] = entry
        if base is not None and entry.fits_sizes is not None and is_size_key(key):
            base.family.enter(base, entry.fits_sizes, entry.captured.objects)
            self._find_quickly(entry, base.family)
        if stale is not None:
            entry.builds += stale.builds
            changed = stale.watch.changed() or "the content of a tensor"
            self._notices.compiled_again(entry.builds, changed)
        self._notices.compiled(self._entries)

    def _find_quickly(self, entry: Entry, family: Family) -> None:
        """Let calls with tensors only find the entry without looking up their key."""
        self._quick = [item for item in self._quick if item[1].key is not entry.key]
        assert entry.captured.sizes is not None
        matches = matching(family.first.family, entry.captured.sizes)
        if matches is not None and not entry.needs_more_than_key:
            self._quick.append((matches, entry))
