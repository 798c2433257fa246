"""The text of a program in each of its forms, which is parsed back exactly.

    print_form(form)                    parse_form(text, constants) == form
    print_program(device_program)       parse_program(text) == device_program

The first word is the form: `operators`, `kernels`, `program` or `plan`. The text omits
the tensors of constants, which are passed to `parse_form` by name. Of exceptions that
the user defined it has only the class and the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from stretto.device.expr import Buffer
from stretto.device.expr_text import ExprParser, ExprPrinter
from stretto.device.forms import (
    Form,
    Lowered,
    Planned,
    ProgramInterface,
    Scheduled,
    Selected,
    externals,
)
from stretto.device.operator import PLAIN_TEMPLATES, Kernel, Template
from stretto.device.plan import Action, Launch, Library, Plan
from stretto.device.program import DeviceProgram, FrameLayout, Schedule, Small
from stretto.device.syntax import (
    DECLARATIONS,
    FRAME,
    HOST_FUNCTION,
    INTERFACE,
    KERNEL,
    KERNELS,
    MARK,
    OPERATORS,
    SCHEDULE,
    SMALL,
    ActionText,
    LaunchText,
    LibraryText,
    record,
    tree_function,
)
from stretto.device.tree import Tree, TreeFunction, map_tree
from stretto.errors import ScheduleError
from stretto.grammar import Syntax, choice, converted, indented, lines

T = TypeVar("T")

NO_INTERFACE = ProgramInterface((), ())


def print_form(form: Form) -> str:
    """Return the text of a program in any of its forms."""
    return _print(FORM, form)


def parse_form(
    text: str,
    constants: Mapping[str, Tensor] | None = None,
    templates: Mapping[str, type[Template]] = PLAIN_TEMPLATES,
) -> Form:
    """Parse the text of a program.

    constants: tensors by the names of their buffers. Without them a program can be
    inspected and compiled, but not run. templates: those of the machine that the program is
    for, by name. Raises ScheduleError for a mistake in the text.
    """
    form = _parse(FORM, text, templates)
    given = constants or {}
    tensors = {b.slot: given[b.name] for b in _constants(form) if b.name in given}
    return replace(form, interface=replace(form.interface, constants=tensors))


def form_constants(form: Form) -> dict[str, Tensor]:
    """Return the tensors of a program's constants by buffer name, as `parse_form` takes them."""
    tensors = form.interface.constants
    return {b.name: tensors[b.slot] for b in _constants(form) if b.slot in tensors}


def print_program(program: DeviceProgram) -> str:
    """Return the text of a scheduled program without its interface."""
    return _print(SCHEDULED, Scheduled(program, NO_INTERFACE))


def parse_program(
    text: str, templates: Mapping[str, type[Template]] = PLAIN_TEMPLATES
) -> DeviceProgram:
    """Parse the text of a scheduled program. Raise ScheduleError for a mistake in the text."""
    return _parse(SCHEDULED, text, templates).program


def _print(syntax: Syntax[T], value: T) -> str:
    printer = ExprPrinter()
    text = syntax.show(printer, value)
    return indented(text.replace(MARK, "\n".join(printer.declarations())))


def _parse(syntax: Syntax[T], text: str, templates: Mapping[str, type[Template]]) -> T:
    given = ExprParser(text, templates)
    found = syntax.read(given)
    given.end()
    return found


def _constants(form: Form) -> list[Buffer]:
    return [buffer for buffer in externals(form) if buffer.kind == "constant"]


# ---- trees -----------------------------------------------------------------------------------
def _show_interface(printer: ExprPrinter, interface: ProgramInterface) -> str:
    return "" if interface == NO_INTERFACE else INTERFACE.show(printer, interface)


def _read_interface(given: ExprParser) -> ProgramInterface:
    return INTERFACE.read(given) if given.peek() in INTERFACE.first else NO_INTERFACE


_INTERFACE = Syntax(_show_interface, _read_interface)


def _tree(leaf: Syntax[Any]) -> Syntax[Tree[Any]]:
    functions = lines(tree_function(leaf))
    return record(Tree, "externals {externals}\n{functions}", functions=functions)


LOWERED = record(
    Lowered,
    "operators\n{declarations}\n{interface}\n{tree}",
    declarations=DECLARATIONS,
    interface=_INTERFACE,
    tree=_tree(OPERATORS),
)
SELECTED = record(
    Selected,
    "kernels\n{declarations}\n{interface}\n{tree}",
    declarations=DECLARATIONS,
    interface=_INTERFACE,
    tree=_tree(KERNELS),
)


# ---- scheduled programs and plans ------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _ProgramText:
    """A program or plan as it is printed. hosts: the functions that the host executes, each with
    its words."""

    units: int
    interface: ProgramInterface
    externals: tuple[Buffer, ...]
    lists: tuple[Buffer, ...]
    small: Small | None
    kernels: tuple[Kernel, ...]
    frames: tuple[tuple[str, FrameLayout], ...]
    functions: tuple[TreeFunction[Schedule], ...]
    hosts: tuple[tuple[tuple[tuple[str, int], ...], TreeFunction[ActionText]], ...] = ()

    @staticmethod
    def of(program: DeviceProgram, interface: ProgramInterface) -> _ProgramText:
        return _ProgramText(
            program.units,
            interface,
            program.tree.externals,
            program.lists,
            program.small,
            program.kernels,
            program.frames,
            program.tree.functions,
        )

    @property
    def program(self) -> DeviceProgram:
        tree = Tree(self.functions, self.externals)
        return DeviceProgram(self.units, tree, self.kernels, self.frames, self.lists, self.small)


def _program_text(word: str) -> Syntax[_ProgramText]:
    return record(
        _ProgramText,
        f"{word} {{units}}\n{{declarations}}\n{{interface}}\nexternals {{externals}}\n"
        "[lists {lists}\n][small {small}\n]{kernels}\n{frames}\n{functions}\n{hosts}",
        defaults={"lists": (), "small": None},
        declarations=DECLARATIONS,
        interface=_INTERFACE,
        small=SMALL,
        kernels=lines(KERNEL),
        frames=lines(FRAME),
        functions=lines(tree_function(SCHEDULE)),
        hosts=lines(HOST_FUNCTION),
    )


def _action_text(program: DeviceProgram, action: Action) -> ActionText:
    if isinstance(action, Library):
        return LibraryText(action.kernel)
    main, *others = action.program.tree.functions
    frame = action.program.frame(main.name)
    return LaunchText(
        next(name for name, known in program.frames if known == frame),
        tuple(kernel.name for kernel in action.program.kernels),
        tuple(function.name for function in others),
        action.rotated,
        action.guards,
        main,
    )


def _action(program: DeviceProgram, text: ActionText) -> Action:
    """Resolve the names in a launch or library call. Raise KeyError for a name that the program
    lacks."""
    kernels = {kernel.name: kernel for kernel in program.kernels}
    if isinstance(text, LibraryText):
        call = kernels[text.kernel].call
        if call is None:
            raise ScheduleError(f"kernel {text.kernel} is no library call")
        return Library(call, text.kernel)
    functions = {function.name: function for function in program.tree.functions}
    frames = dict(program.frames)
    part = DeviceProgram(
        program.units,
        Tree((text.main, *(functions[name] for name in text.calls)), program.tree.externals),
        tuple(kernels[name] for name in text.kernels),
        ((text.main.name, frames[text.frame]), *((name, frames[name]) for name in text.calls)),
        program.lists,
    )
    return Launch(part, text.rotated, text.guards)


def _plan_text(form: Planned) -> _ProgramText:
    plan = form.plan
    tree = map_tree(plan.tree, lambda action: _action_text(plan.program, action))
    hosts = tuple((tuple(plan.words[f.name].items()), f) for f in tree.functions)
    return replace(_ProgramText.of(plan.program, form.interface), hosts=hosts)


def _planned(text: _ProgramText) -> Planned:
    program = text.program
    texts = Tree(tuple(function for _, function in text.hosts), text.externals)
    words = {function.name: dict(words) for words, function in text.hosts}
    try:
        tree = map_tree(texts, lambda action: _action(program, action))
    except KeyError as error:
        raise ScheduleError(f"the plan names {error}, which its program does not have") from error
    return Planned(Plan(program, tree, words), text.interface)


SCHEDULED: Syntax[Scheduled] = converted(
    _program_text("program"),
    lambda text: Scheduled(text.program, text.interface),
    lambda form: _ProgramText.of(form.program, form.interface),
)
PLANNED: Syntax[Planned] = converted(_program_text("plan"), _planned, _plan_text)
FORM: Syntax[Form] = choice(
    {Lowered: LOWERED, Selected: SELECTED, Scheduled: SCHEDULED, Planned: PLANNED}
)
