"""The rules of a DeviceProgram, checked before it may run, without regard to how it was made.

Form: kernels, functions, buffers and units exist; each kernel of a leaf runs each of its tasks
once; all units have the same register statements; registers are assigned before they are used.
Order: waits cannot deadlock; no two conflicting accesses are unordered; memory is written before it
is read; nothing is pending when a function is called or returns.
Memory: frames hold their buffers; functions say which params they write; what a call writes is not
passed to it a second time.
"""

from __future__ import annotations

from collections import Counter

from stretto.errors import VerifyError
from stretto.kernels.operator import Kernel
from stretto.kernels.regions import kernel_regions, overlap
from stretto.kernels.tree import Call, Check, Let, TreeFunction, leaves
from stretto.schedule.assignment import check_registers
from stretto.schedule.initialisation import InitialisationChecker, Summary, bound_region
from stretto.schedule.ordering import Orders
from stretto.schedule.places import Places
from stretto.schedule.program import DeviceProgram, Run, Schedule
from stretto.schedule.races import RaceFinder
from stretto.schedule.touched import Touched
from stretto.schedule.writes import function_calls, relevance

Kernels = dict[str, Kernel]


def verify(program: DeviceProgram) -> None:
    """Raises VerifyError with the first rule that the program breaks."""
    kernels = _kernels(program)
    functions = {function.name: function for function in program.tree.functions}
    if len(functions) != len(program.tree.functions) or "main" not in functions:
        raise VerifyError("functions need names of their own, and one is main")
    for function in functions.values():
        _check_calls(function, functions)
    relevant = relevance(program.tree, program.kernels)
    places: dict[str, Places] = {}
    orders, touched = Orders(), Touched(kernels)
    for name, function in functions.items():
        if name not in dict(program.frames):
            raise VerifyError(f"function {name} has no frame")
        places[name] = Places(function, program.frame(name))
        for schedule in leaves(function.body):
            _check_leaf(schedule, program.units, kernels)
            orders(schedule)
        check_registers(function, program.tree.externals, kernels)
        _check_written(function, functions, kernels)
        if program.units > 1:
            finder = RaceFinder(kernels, places[name], relevant(function), orders, touched)
            finder.check(function.body, name)
    _check_initialisation(program, kernels, places, orders, touched)


def _kernels(program: DeviceProgram) -> Kernels:
    kernels = {kernel.name: kernel for kernel in program.kernels}
    if len(kernels) != len(program.kernels):
        raise VerifyError("two kernels have one name")
    return kernels


def _check_leaf(schedule: Schedule, units: int, kernels: Kernels) -> None:
    if len(schedule.units) != units:
        raise VerifyError(f"a leaf has {len(schedule.units)} units instead of {units}")
    statements = [[i for i in items if isinstance(i, Let | Check)] for items in schedule.units]
    if any(other != statements[0] for other in statements):
        raise VerifyError("the units of a leaf differ in their register statements")
    done: Counter[tuple[str, int]] = Counter()
    dynamic: dict[str, list[Run]] = {}
    for item in (item for items in schedule.units for item in items):
        if isinstance(item, Run):
            if item.kernel not in kernels:
                raise VerifyError(f"there is no kernel {item.kernel}")
            if item.count is None:
                dynamic.setdefault(item.kernel, []).append(item)
            else:
                done.update((item.kernel, task) for task in _tasks(item, kernels[item.kernel]))
    for (name, task), times in done.items():
        if times != 1:
            raise VerifyError(f"task {task} of kernel {name} runs {times} times in one leaf")
    for name, times in Counter(name for name, _ in done).items():
        if times != kernels[name].tasks:
            raise VerifyError(f"kernel {name} runs {times} of its {kernels[name].tasks} tasks")
    for name, runs in dynamic.items():
        _check_dynamic(name, runs)


def _tasks(run: Run, kernel: Kernel) -> range:
    if not kernel.is_static:
        raise VerifyError(f"kernel {kernel.name} has a dynamic grid but a fixed number of tasks")
    assert run.count is not None
    last = run.first + (run.count - 1) * run.stride
    if run.first < 0 or run.count < 1 or run.stride < 1 or last >= kernel.tasks:
        raise VerifyError(f"kernel {kernel.name} has no tasks {run.first} .. {last}")
    return range(run.first, last + 1, run.stride)


def _check_dynamic(name: str, runs: list[Run]) -> None:
    """Together the runs are every task once: the same stride, each start below it once."""
    stride = runs[0].stride
    if [run.first for run in sorted(runs, key=lambda run: run.first)] != list(range(stride)) or any(
        run.stride != stride for run in runs
    ):
        raise VerifyError(f"the tasks of kernel {name} do not run once each")


def _check_calls(
    function: TreeFunction[Schedule], functions: dict[str, TreeFunction[Schedule]]
) -> None:
    for call in function_calls(function):
        callee = functions.get(call.function)
        if callee is None:
            raise VerifyError(f"there is no function {call.function}")
        if [param for param, _ in call.tensors] != list(callee.tensors):
            raise VerifyError(f"a call of {call.function} does not bind its tensors in order")
        if {register for register, _ in call.registers} != set(callee.params):
            raise VerifyError(f"a call of {call.function} does not give its registers")
        if not {theirs for _, theirs in call.results} <= set(callee.results):
            raise VerifyError(f"a call of {call.function} takes what is not a result")
        _check_aliases(call, callee)


def _check_aliases(call: Call[Schedule], callee: TreeFunction[Schedule]) -> None:
    """Memory that the callee writes must be known to it by one name only."""
    bound = [(param, bound_region(param, access, write=False)) for param, access in call.tensors]
    for param, region in bound:
        for other, seen in bound:
            if param is other or param not in callee.written:
                continue
            if region.buffer.name == seen.buffer.name and overlap(region, seen):
                raise VerifyError(
                    f"a call of {call.function} passes {region.buffer.name} as {other.name} and "
                    f"as {param.name}, which is written"
                )


def _check_written(
    function: TreeFunction[Schedule],
    functions: dict[str, TreeFunction[Schedule]],
    kernels: Kernels,
) -> None:
    """A function says which params it writes."""
    changed = {
        region.buffer
        for schedule in leaves(function.body)
        for items in schedule.units
        for item in items
        if isinstance(item, Run)
        for region in kernel_regions(kernels[item.kernel])
        if region.write
    }
    for call in function_calls(function):
        written = functions[call.function].written
        changed |= {access.buffer for param, access in call.tensors if param in written}
    for buffer in changed:
        if buffer.kind == "param" and buffer not in function.written:
            raise VerifyError(f"function {function.name} writes {buffer.name} but does not say so")


def _check_initialisation(
    program: DeviceProgram,
    kernels: Kernels,
    places: dict[str, Places],
    orders: Orders,
    touched: Touched,
) -> None:
    """What functions need and give depends on each other: until nothing changes."""
    functions = program.tree.functions
    summaries = {f.name: Summary(gives=set(f.written)) for f in functions}
    checkers = [
        InitialisationChecker(function, kernels, places[function.name], summaries, orders, touched)
        for function in functions
    ]
    changed = True
    while changed:
        changed = False
        for checker in checkers:
            changed = checker.check() or changed
