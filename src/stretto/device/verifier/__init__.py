"""The rules for programs in each form, checked independently of how the program was created.

`verify_form` takes any form. Trees of operators and of kernels are verified as the program that a
single unit runs (`sequential`), a plan as the program that its launches form together (`plans`). So
the rules are those of a DeviceProgram, which `verify` checks:

Form: kernels, functions, buffers and units exist; each kernel of a leaf runs each of its tasks
once; all units have the same register statements; registers are assigned before they are used.

Order: waits cannot deadlock; no two conflicting accesses are unordered; memory is written before it
is read; no access is pending when a function is called or returns, except those of one unit to
lists that it alone accesses there.

Parallel loops: their iterations share no memory that one of them writes, and no registers.

Memory: frames contain their buffers; accesses are inside them; functions declare which params they
write; memory that is written has one name in each function.

Source: if it is given, the program does the same as the tree that it was scheduled from.

docs/explanation/verifier.md states precisely what follows from these rules, and what does not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stretto.device.forms import Form, Lowered, Planned, Scheduled, Selected
from stretto.device.normalize import normalize, sequential, single_kernels, tree_kernels
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.tree import Tree, leaves
from stretto.device.verifier.assignment import check_registers
from stretto.device.verifier.bounds import check_bounds
from stretto.device.verifier.conformance import Origins, check_conformance
from stretto.device.verifier.form import check_form, check_kernels
from stretto.device.verifier.initialisation import check_initialisation
from stretto.device.verifier.ordering import Orders
from stretto.device.verifier.parallel import check_called_in_parallel, check_parallel
from stretto.device.verifier.places import FramePlaces, check_aliases
from stretto.device.verifier.plans import as_program, check_words
from stretto.device.verifier.races import check_races
from stretto.device.verifier.size_bounds import check_sized_bounds
from stretto.device.verifier.symbols import check_interface, check_symbols
from stretto.device.verifier.touched import ItemRegions, check_coverage, check_templates
from stretto.ir.sizes import Symbol


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof that a program keeps the rules for all values of its symbols in their ranges.

    in_range: number of accesses that depend on symbols and were proved to be in range. at_run:
    number of those whose positions are known only at run time, when they are checked.
    """

    symbols: tuple[Symbol, ...] = ()
    in_range: int = 0
    at_run: int = 0

    def __str__(self) -> str:
        if not self.symbols:
            return "for its sizes"
        ranges = ", ".join(symbol.declaration for symbol in self.symbols)
        text = f"for {ranges}: {self.in_range} accesses in range"
        return f"{text}, {self.at_run} checked in the run" if self.at_run else text


def verify_form(form: Form, source: Tree[Body] | None = None) -> Proof:
    """Raise VerifyError with the first rule that a program in any form breaks; return what was
    proved.

    source: the tree of kernels that a program or plan was made from, which it must be
    equivalent to.
    """
    match form:
        case Lowered(tree):
            program = sequential(single_kernels(tree))
        case Selected(tree):
            verify_selection(tree)
            program = sequential(tree)
        case Scheduled(program):
            pass
        case Planned(plan):
            program = plan.program
            verify_plan(plan, source)
    check_interface(form.interface, program)
    return verify(program, source)


def verify_selection(tree: Tree[Body]) -> None:
    """Raise VerifyError for kernels that do not compute their operators. All other rules are
    verified once the tree is scheduled."""
    kernels = tuple(tree_kernels(tree))
    check_kernels(kernels)
    check_templates(kernels)
    check_coverage(tree)


def verify_plan(plan: Plan, source: Tree[Body] | None = None) -> None:
    """Raise VerifyError for a plan that is not equivalent to its program. The program itself is
    verified separately."""
    check_words(plan)
    if not plan.is_whole:
        verify(as_program(plan), source)


def verify(program: DeviceProgram, source: Tree[Body] | None = None) -> Proof:
    """Prove that the program keeps all rules, and return the sizes for which it does.

    Raises VerifyError with the first rule that it breaks. source: the tree that the program
    was scheduled from. Without it the program may do anything that is safe.
    """
    check_form(program)
    check_symbols(program)
    functions = program.tree.functions
    touched = ItemRegions({kernel.name: kernel for kernel in program.kernels})
    check_called_in_parallel(program, touched)
    orders = Orders()
    places: dict[str, FramePlaces] = {}
    accesses: Counter[bool] = Counter()
    for function in functions:
        places[function.name] = FramePlaces(function, program.frame(function.name))
        for schedule in leaves(function.body):
            orders(schedule)
        check_registers(function, program.tree.externals, touched)
        check_parallel(function, program, touched, orders)
        check_bounds(function, touched)
        check_sized_bounds(function, touched, accesses)
    check_aliases(program, places, touched)
    found: Origins = {}
    if source is not None:
        found = check_conformance(program, normalize(source), touched)
    if program.units > 1:
        check_races(program, places, orders, touched, found)
    check_initialisation(program, places, orders, touched)
    return Proof(program.symbols, accesses[True], accesses[False])
