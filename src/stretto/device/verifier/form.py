"""Well-formedness of a DeviceProgram: everything that it names exists, and its parts fit together.

The other rules rely on this: they may look up every kernel, function, buffer and unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Const,
    Expr,
    Extent,
    Load,
    Quotient,
    Reg,
    Remainder,
    Var,
    expr_atoms,
    index_parts,
    is_known,
    is_split,
    known_size,
    loads,
    parts,
)
from stretto.device.functions import FUNCTIONS, ResultDtype
from stretto.device.operator import (
    ATTEND,
    POSITIONS,
    SCANS,
    SORTS,
    Combine,
    Kernel,
    Operator,
    Stage,
)
from stretto.device.program import FRAME_ALIGNMENT, DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.regions import call_buffers, kernel_reads
from stretto.device.tree import (
    Call,
    Check,
    For,
    Leaf,
    Let,
    Node,
    TreeFunction,
    inputs,
    rotation,
    walk,
)
from stretto.device.user_kernels import kernel_of, whole_dims
from stretto.device.verifier.parallel import parallel_schedules
from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most
from stretto.ir.types import DType

# ---- Arguments fit scalar functions, and results have the dtype of the memory they are stored in.


POSITION_RESULTS = (*POSITIONS, *SORTS)
"""Combines whose result is an i64 position for any operand dtype."""


def check_operator_types(operator: Operator, what: str) -> None:
    """Raise VerifyError for an expression whose dtypes do not fit together. A value that is added
    to f16 or bf16 memory may be f32, the dtype of the addition."""
    check_types(operator.value, what)
    for index in operator.out.index:
        for part in index_parts(index):
            _check(part, what)
    result = DType.I64 if operator.combine in POSITION_RESULTS else operator.value.dtype
    buffer = operator.out.buffer
    halves = operator.accumulate and buffer.dtype in (DType.F16, DType.BF16)
    if result is not buffer.dtype and not (halves and result is DType.F32):
        raise VerifyError(f"{what} stores {result.value} into {buffer.name}, {buffer.dtype.value}")


def check_types(expr: Expr, what: str) -> None:
    """Raise VerifyError for a function that is applied to arguments it does not take."""
    for part in parts(expr):
        _check(part, what)


def _check(expr: Expr, what: str) -> None:
    if not isinstance(expr, Apply):
        return
    known = FUNCTIONS.get(expr.function)
    if known is None or len(expr.args) != known.arity:
        raise VerifyError(f"{what} calls {expr.function} with {len(expr.args)} arguments")
    given = [argument.dtype for argument in expr.args]
    if not _fits(known.result, given, expr.dtype):
        names = ", ".join(dtype.value for dtype in given)
        raise VerifyError(f"{what} calls {expr.function} of {names} as {expr.dtype.value}")


def _fits(result: ResultDtype, given: list[DType], dtype: DType) -> bool:
    first, same = given[0], len(set(given)) == 1
    match result:
        case ResultDtype.SAME:
            return same and dtype is first
        case ResultDtype.FLOAT:
            return same and dtype is first and dtype.is_float
        case ResultDtype.INTEGER:
            return dtype is first and dtype.is_integer
        case ResultDtype.LOGICAL:
            return same and first is DType.BOOL and dtype is DType.BOOL
        case ResultDtype.BITS:
            return same and dtype is first and not dtype.is_float
        case ResultDtype.TEST:
            return same and dtype is DType.BOOL
        case ResultDtype.ARMS:
            return first is DType.BOOL and given[1] is given[2] is dtype
        case ResultDtype.CHOSEN:
            return True


# ---- Calls of user kernels match their declarations.
#
# A user kernel cannot handle a part of a dim without an index, nor an operand that is the result.


def check_user_stage(kernel: Kernel, stage: Stage) -> None:
    """Raise VerifyError for a stage that calls a user kernel against its declaration."""
    operator = stage.operator
    if operator.combine is not Combine.KERNEL:
        return
    what = f"kernel {kernel.name}"
    try:
        declared = kernel_of(operator)
    except ValueError as error:
        raise VerifyError(f"{what}: {error}") from error
    value = operator.value
    assert isinstance(value, Apply)
    reads = value.args[: len(declared.reads)]
    if len(value.args) != declared.arity or not all(isinstance(arg, Load) for arg in reads):
        raise VerifyError(f"{what} calls {declared.name} with other arguments than it takes")
    if len(operator.dims) < len(declared.write.parts):
        raise VerifyError(f"{what} calls {declared.name} for a result of too few dims")
    for dim in whole_dims(operator):
        span = stage.box[dim]
        if span.grid is not None or span.offset or span.extent != operator.dims[dim]:
            raise VerifyError(
                f"{what} computes a part of a dim that {declared.name} has no index of"
            )
    if any(load.access.buffer == operator.out.buffer for load in operator.reads()):
        raise VerifyError(f"{what} lets {declared.name} write what it reads")


Kernels = Mapping[str, Kernel]
Scope = Mapping[str, Buffer]

MOST_TASKS = 1 << 24
"""Maximum number of tasks of one kernel. More would not fit the tables of the verifier and the
machines."""


def check_form(program: DeviceProgram) -> None:
    """Raise VerifyError for anything missing, named twice, or of the wrong kind."""
    kernels = {kernel.name: kernel for kernel in program.kernels}
    if len(kernels) != len(program.kernels):
        raise VerifyError("two kernels have one name")
    functions = {function.name: function for function in program.tree.functions}
    if len(functions) != len(program.tree.functions) or "main" not in functions:
        raise VerifyError("function names must differ, and one function must be main")
    if program.units < 1:
        raise VerifyError("a program needs a unit")
    _check_externals(program)
    _check_frames(program)
    buffers = {name: frozenset(kernel_buffers(kernel)) for name, kernel in kernels.items()}
    check_kernels(program.kernels)
    apart = parallel_schedules(program.tree)
    for function in program.tree.functions:
        scope = _scope(function, program.tree.externals)
        for node in walk(function.body):
            _check_control(node)
            _check_rotation(node, scope, function)
            match node:
                case Leaf(schedule):
                    _check_leaf(schedule, program.units, kernels, id(schedule) in apart)
                    used = {b for name in schedule.kernels for b in buffers[name]}
                    _check_buffers((*used, *_statement_buffers(schedule)), scope, function)
                case Call():
                    if node.function not in functions:
                        raise VerifyError(f"there is no function {node.function}")
                    _check_call(node, functions[node.function])
                    _check_buffers((a.buffer for _, a in node.tensors), scope, function)
                case For(step=0):
                    raise VerifyError("a loop has step 0")
                case For(independent=(_, *_) as shared):
                    if any(b.kind != "updated" and b not in function.locals for b in shared):
                        raise VerifyError("a loop is independent in memory that it does not change")
                    _check_buffers(shared, scope, function)
                case _:
                    pass


def check_kernels(kernels: Iterable[Kernel]) -> None:
    """Raise VerifyError for a kernel whose parts do not fit together."""
    for kernel in kernels:
        _check_kernel(kernel)


# ---- memory ----------------------------------------------------------------------------------
def _check_externals(program: DeviceProgram) -> None:
    externals = program.tree.externals
    if len({b.slot for b in externals}) != len(externals):
        raise VerifyError("two external buffers have one slot")
    for buffer in externals:
        if buffer.kind not in ("input", "updated", "output", "constant", "list"):
            raise VerifyError(f"external buffer {buffer.name} is of kind {buffer.kind}")
    if program.lists != tuple(b for b in externals if b.kind == "list"):
        raise VerifyError("the lists of the program are not those of its external buffers")


def _check_frames(program: DeviceProgram) -> None:
    frames = dict(program.frames)
    for function in program.tree.functions:
        if function.name not in frames:
            raise VerifyError(f"function {function.name} has no frame")
    if len(frames) != len(program.tree.functions) or len(frames) != len(program.frames):
        raise VerifyError("there is a frame of no function, or a function has two")
    for function in program.tree.functions:
        frame = frames[function.name]
        placed = [name for name, _ in frame.placements]
        if len(set(placed)) != len(placed) or not set(placed) <= {b.name for b in function.locals}:
            raise VerifyError(f"the frame of {function.name} places what is not a local buffer")
        if frame.nbytes < 0 or frame.nbytes % FRAME_ALIGNMENT:
            raise VerifyError(
                f"the frame of {function.name} has {frame.nbytes} bytes, no multiple of "
                f"{FRAME_ALIGNMENT}"
            )


def _scope(function: TreeFunction[Schedule], externals: Iterable[Buffer]) -> Scope:
    """Return the buffers of a function by name. Raise VerifyError for one that is declared
    wrongly."""
    everything = (*function.locals, *function.tensors, *externals)
    scope = {buffer.name: buffer for buffer in everything}
    if len(scope) != len(everything):
        raise VerifyError(f"two buffers of function {function.name} have one name")
    for kinds, buffers in (
        (("local", "items"), function.locals),
        (("param",), function.tensors),
    ):
        for buffer in buffers:
            if buffer.kind not in kinds:
                raise VerifyError(f"buffer {buffer.name} of {function.name} is {buffer.kind}")
            if any(isinstance(dim, Reg) or not at_most(0, dim) for dim in buffer.shape):
                raise VerifyError(f"the size of buffer {buffer.name} is not known at the call")
    if not set(function.written) <= set(function.tensors):
        raise VerifyError(f"function {function.name} writes what is not a param")
    if function.name == "main" and (function.tensors or function.params):
        raise VerifyError("main has params")
    return scope


def _check_buffers(used: Iterable[Buffer], scope: Scope, function: TreeFunction[Schedule]) -> None:
    for buffer in used:
        if scope.get(buffer.name) != buffer:
            raise VerifyError(f"function {function.name} does not declare buffer {buffer.name}")


def _check_rotation(node: Node[Schedule], scope: Scope, function: TreeFunction[Schedule]) -> None:
    """Check that each buffer is swapped with one other only, so that the order of the pairs is
    irrelevant."""
    buffers = [buffer for pair in rotation(node) for buffer in pair]
    if len({buffer.name for buffer in buffers}) != len(buffers):
        raise VerifyError("a buffer rotates twice in one loop")
    for current, following in rotation(node):
        if (current.dtype, current.shape) != (following.dtype, following.shape):
            raise VerifyError(f"{current.name} and {following.name} rotate but differ in type")
        if any(b not in function.locals for b in (current, following)):
            raise VerifyError(f"{current.name} and {following.name} rotate but are not both local")
    _check_buffers(buffers, scope, function)


def kernel_buffers(kernel: Kernel) -> Iterator[Buffer]:
    """Yield the buffers that a kernel names."""
    if kernel.call is not None:
        yield from (*call_buffers(kernel.call), *kernel.call.outs)
    for stage in kernel.stages:
        for load in stage.operator.reads():
            yield load.access.buffer
        yield stage.operator.out.buffer


def _statement_buffers(schedule: Schedule) -> Iterator[Buffer]:
    for item in schedule.statements:
        for expr in item.exprs:
            yield from (load.access.buffer for load in loads(expr))


# ---- leaves ----------------------------------------------------------------------------------
def _check_leaf(schedule: Schedule, units: int, kernels: Kernels, is_apart: bool) -> None:
    """Check one leaf. is_apart: it is in a parallel loop, where each unit runs all tasks of its
    iterations."""
    if len(schedule.units) != units:
        raise VerifyError(f"a leaf has {len(schedule.units)} units instead of {units}")
    statements = [[i for i in items if isinstance(i, Let | Check)] for items in schedule.units]
    if any(other != statements[0] for other in statements):
        raise VerifyError("the units of a leaf differ in their register statements")
    for statement in statements[0]:
        for expr in statement.exprs:
            check_types(expr, "a register statement")
            for load in loads(expr):
                _check_access(load.access, "a register statement")
    for items in schedule.units:
        _check_cuts(items, kernels)
    everyone = schedule.units
    if is_apart:
        if any(items != everyone[0] for items in everyone):
            raise VerifyError("the units differ in what they do in a parallel loop")
        everyone = everyone[:1]
    elif schedule.steps == 0 and any(everyone):
        # A unit that waits for step 0 of the next leaf would not see the effects of this one.
        raise VerifyError("a leaf with items publishes nothing at its end")
    runs: dict[str, list[Run]] = {}
    for item in (item for items in everyone for item in items):
        match item:
            case Run(kernel=name):
                if name not in kernels:
                    raise VerifyError(f"there is no kernel {name}")
                runs.setdefault(name, []).append(item)
            case Wait() | Signal() | Let() | Check():
                pass
    for name, found in runs.items():
        _check_runs(kernels[name], found)


def _check_cuts(items: Iterable[Item], kernels: Kernels) -> None:
    """Check that a register that cuts a dim into parts is not assigned later in the leaf: parts of
    one leaf are compared by their numbers."""
    cutting: dict[str, str] = {}
    for item in items:
        match item:
            case Run(kernel=name) if name in kernels:
                cut = [dim.extent for dim in kernels[name].grid if dim.is_cut_by_register]
                cut += [reg for reg in kernel_reads(kernels[name]) if is_split(reg)]
                cutting |= {extent.name: name for extent in cut if isinstance(extent, Reg)}
            case Let(reg=reg) if reg.name in cutting:
                raise VerifyError(
                    f"register {reg.name} is assigned after kernel {cutting[reg.name]}, which it "
                    "cuts into parts"
                )
            case _:
                pass


def _check_runs(kernel: Kernel, runs: list[Run]) -> None:
    """Check that the runs together execute every task once."""
    if not kernel.is_static and any(run.count is not None for run in runs):
        raise VerifyError(f"kernel {kernel.name} has a dynamic grid but a fixed number of tasks")
    if any(run.count is None for run in runs):
        _check_dynamic(kernel, runs)
        return
    times = np.zeros(kernel.tasks, np.int32)
    for run in runs:
        assert run.count is not None
        last = run.first + (run.count - 1) * run.stride
        if run.first < 0 or run.count < 1 or run.stride < 1 or last >= kernel.tasks:
            raise VerifyError(f"kernel {kernel.name} has no tasks {run.first} .. {last}")
        times[run.first : last + 1 : run.stride] += 1
    if times.max(initial=0) > 1:
        task = int(times.argmax())
        raise VerifyError(
            f"task {task} of kernel {kernel.name} runs {times[task]} times in one leaf"
        )
    done = int(np.count_nonzero(times))
    if done != kernel.tasks:
        raise VerifyError(f"kernel {kernel.name} runs {done} of its {kernel.tasks} tasks")


def _check_dynamic(kernel: Kernel, runs: list[Run]) -> None:
    """Check that the runs have one stride, and that every first task below it occurs once."""
    stride = runs[0].stride
    if any(run.count is not None or run.stride != stride for run in runs) or sorted(
        run.first for run in runs
    ) != list(range(len(runs))):
        raise VerifyError(f"the tasks of kernel {kernel.name} do not run once each")
    if len(runs) != stride:
        raise VerifyError(f"the tasks of kernel {kernel.name} do not run once each")


# ---- control ---------------------------------------------------------------------------------
def _check_control(node: Node[Schedule]) -> None:
    for expr in inputs(node):
        check_types(expr, f"a {type(node).__name__} node")
        if next(loads(expr), None) is not None:
            raise VerifyError(f"a {type(node).__name__} node reads memory, which only leaves may")


def _check_call(call: Call[Schedule], callee: TreeFunction[Schedule]) -> None:
    if [param for param, _ in call.tensors] != list(callee.tensors):
        raise VerifyError(f"a call of {call.function} does not bind its tensors in order")
    if sorted(r.name for r, _ in call.registers) != sorted(r.name for r in callee.params):
        raise VerifyError(f"a call of {call.function} does not give its registers")
    if not {theirs for _, theirs in call.results} <= set(callee.results):
        raise VerifyError(f"a call of {call.function} takes what is not a result")
    for param, access in call.tensors:
        _check_access(access, f"a call of {call.function}")
        if access.buffer.dtype is not param.dtype:
            raise VerifyError(f"a call of {call.function} binds {param.name} to another type")


# ---- kernels ---------------------------------------------------------------------------------
def _check_kernel(kernel: Kernel) -> None:
    for dim in kernel.grid:
        if dim.tile < 1 or (isinstance(dim.extent, int) and dim.extent < 0):
            raise VerifyError(f"the grid of kernel {kernel.name} has a dim of no tiles")
        if dim.parts is not None and (dim.parts < 1 or isinstance(dim.extent, int)):
            raise VerifyError(f"kernel {kernel.name} cuts {dim.extent} into {dim.parts} parts")
    if kernel.is_static and kernel.tasks > MOST_TASKS:
        raise VerifyError(f"kernel {kernel.name} has {kernel.tasks} tasks, too many")
    for buffer in kernel.call.outs if kernel.call is not None else ():
        _check_written(kernel, buffer)
    for stage in kernel.stages:
        _check_box(kernel, stage)
        _check_operator(kernel, stage.operator)
        check_user_stage(kernel, stage)


def _check_written(kernel: Kernel, buffer: Buffer) -> None:
    if buffer.kind in ("constant", "input"):
        raise VerifyError(f"kernel {kernel.name} writes the {buffer.kind} {buffer.name}")


def _check_box(kernel: Kernel, stage: Stage) -> None:
    """Check that the tasks compute a part of the operator's dims."""
    dims = stage.operator.dims
    if len(stage.box) != len(dims):
        raise VerifyError(f"kernel {kernel.name} has a stage of other dims than its operator")
    for span, dim in zip(stage.box, dims, strict=True):
        extent: Extent = span.extent
        if span.grid is not None:
            if not 0 <= span.grid < len(kernel.grid):
                raise VerifyError(f"kernel {kernel.name} has no grid dim {span.grid}")
            extent = kernel.grid[span.grid].extent
        end = span.offset if isinstance(extent, Reg) else extent + span.offset
        if span.offset < 0 or not (isinstance(dim, Reg) or at_most(end, dim)):
            raise VerifyError(f"kernel {kernel.name} computes more than its operator has")


def _check_operator(kernel: Kernel, operator: Operator) -> None:
    what = f"kernel {kernel.name}"
    parallel = len(operator.dims)
    count = parallel + len(operator.reduce)
    _check_vars(expr_atoms(operator.value), count, what)
    stored = count if operator.combine in (*SCANS, *SORTS) else parallel
    _check_vars((a for i in operator.out.index for a in i.atoms()), stored, what)
    if operator.combine in SORTS:
        _check_sort(operator, what)
    _check_attention(operator, what)
    for extent in (*operator.dims, *operator.reduce):
        if isinstance(extent, int) and extent < 0:
            raise VerifyError(f"{what} has an operator of negative size")
    for load in operator.reads():
        _check_access(load.access, what)
    _check_access(operator.out, what)
    check_operator_types(operator, what)
    _check_written(kernel, operator.out.buffer)


def _check_sort(operator: Operator, what: str) -> None:
    """Check that a sort has a dim that is sorted and one that is stored, which is not larger."""
    if len(operator.reduce) != 2:
        raise VerifyError(f"{what} sorts with {len(operator.reduce)} reduction dims, not two")
    sorted_, stored = (Var(len(operator.dims) + n) for n in range(2))
    if stored in expr_atoms(operator.value):
        raise VerifyError(f"{what} sorts values that depend on their rank")
    if any(sorted_ in index.atoms() for index in operator.out.index):
        raise VerifyError(f"{what} stores an order at the positions that it sorts")
    length, keep = operator.reduce
    same = length == keep or (isinstance(length, int) and isinstance(keep, int) and keep <= length)
    if not same:
        raise VerifyError(f"{what} keeps more elements than it sorts")


def _check_attention(operator: Operator, what: str) -> None:
    """Check that an attention has all its arguments, of which only the product depends on the
    depth."""
    value = operator.value
    attends = operator.combine is Combine.ATTENTION
    found = [x for x in parts(value) if isinstance(x, Apply) and x.function == ATTEND]
    if found != ([value] if attends else []) or (attends and len(operator.reduce) != 2):
        raise VerifyError(f"{what} attends to keys without scores")
    if not isinstance(value, Apply) or not attends:
        return
    depth = Var(len(operator.dims) + 1)
    if any(depth in expr_atoms(part) for part in value.args[1:]):
        raise VerifyError(f"{what} attends with a scale, bias or value that depends on the depth")
    if not isinstance(value.args[1], Const):
        raise VerifyError(f"{what} scales its scores by an expression that is not a constant")


def _check_vars(atoms: Iterable[object], count: int, what: str) -> None:
    for atom in atoms:
        match atom:
            case Var(number):
                if not 0 <= number < count:
                    raise VerifyError(f"{what} uses variable {number} of {count}")
            case Quotient(_, divisor) | Remainder(_, divisor):
                if not at_most(1, divisor):
                    raise VerifyError(f"{what} divides an index by {divisor}")
            case _:
                pass


def _check_access(access: Access, what: str) -> None:
    """Check that the view of the buffer has no more elements than the buffer itself."""
    buffer, shape = access.buffer, access.shape
    if len(access.index) != len(shape):
        raise VerifyError(f"{what} accesses {buffer.name} with {len(access.index)} indices")
    if any(factor == 0 for index in access.index for _, factor in index.terms):
        raise VerifyError(f"{what} accesses {buffer.name} with a term of factor 0")
    if not all(is_known(dim) for dim in shape[1:]):
        raise VerifyError(f"{what} sees {buffer.name} with a register after its first dim")
    if any(isinstance(dim, int) and dim < 0 for dim in shape):
        raise VerifyError(f"{what} sees {buffer.name} with a dim of negative size")
    if any(isinstance(dim, Reg) for dim in buffer.shape):
        return  # a list, whose capacity grows
    if shape and isinstance(shape[0], Reg):
        row, room = known_size(shape[1:]), known_size(buffer.shape)
        fits = at_most(row, known_size(buffer.shape[1:])) or at_most(row, room) or room == 0
    else:
        fits = at_most(known_size(shape), known_size(buffer.shape))
    if not fits:
        raise VerifyError(f"{what} sees {buffer.name} as larger than it is")
