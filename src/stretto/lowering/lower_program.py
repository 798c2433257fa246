"""Entry of the lowering: a Program becomes a tree of operators and an argument block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from stretto.components import reachable
from stretto.device.costs import HOST_COSTS, CostModel
from stretto.device.expr import Apply, Buffer, Const, Expr, Index, Position, Reg, size_register
from stretto.device.forms import Items, Lowered, Output, OutputList, OutputTensor, ProgramInterface
from stretto.device.operator import DRAWS, Operator
from stretto.device.runs import call_graph, called, called_outside_parallel_loops
from stretto.device.tree import (
    Call,
    Check,
    CheckCode,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    children,
    is_parallel,
    leaves,
    rebuilt,
)
from stretto.device.user_kernels import kernel_for
from stretto.errors import CodegenError, LibraryLayoutError, NotLowered
from stretto.ir.call_graph import called_from
from stretto.ir.core import Function, Op, Program, Value
from stretto.ir.ops import ConstantOp, LiteralOp, SizeOp, TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import DType, TensorListType, TensorType
from stretto.lowering import emit
from stretto.lowering.calls import Passed, passed, row_register, size_parameters
from stretto.lowering.lazy import Lazy, constant, joints, register_value, stored
from stretto.lowering.library_calls import is_left, library_call, lower_kernel
from stretto.lowering.lists.slots import Externals, ListSlots, list_slots
from stretto.lowering.lists.storage import list_storage
from stretto.lowering.lower_control import lower_control
from stretto.lowering.lower_function import LeftToTorch, Lowering, base_register
from stretto.lowering.row_results import Rows, RowTarget, row_results
from stretto.lowering.rules import find_rule
from stretto.lowering.targets import (
    NO_UPDATES,
    InputUpdates,
    LateTarget,
    ListTarget,
    bind,
    bind_all,
    check_updates,
    claim_destinations,
    finish,
    is_register,
)
from stretto.ops.effects import is_draw
from stretto.ops.infer import COMPARISONS
from stretto.ops.properties import misfit, relations_of_sizes

# ---- Loops that stay parallel, decided after all functions have been lowered ------------------
#
# Each unit runs the calls of its iterations by itself, so a function reached from a parallel loop
# may not call a library, have buffers of symbolic size, or be called from anywhere else.


def settle_parallel(
    functions: Sequence[TreeFunction[Items]],
) -> tuple[TreeFunction[Items], ...]:
    """Return the functions with only those loops parallel whose calls a unit can run by itself."""
    graph = call_graph(functions)
    refused = {function.name for function in functions if not _runs_apart(function)}
    settled = tuple(functions)
    while True:
        outside = {one.name: called_outside_parallel_loops(one.body) for one in settled}
        shared = refused | reachable(("main",), outside)
        after = tuple(one.with_body(_settled(one.body, shared, graph)) for one in settled)
        if after == settled:
            return settled
        settled = after


def _runs_apart(function: TreeFunction[Items]) -> bool:
    items = (item for body in leaves(function.body) for item in body)
    return all(isinstance(item, Operator | Let | Check) for item in items) and not any(
        buffer.is_sized or buffer.kind == "list" for buffer in function.locals
    )


def _settled(node: Node[Items], shared: set[str], graph: dict[str, set[str]]) -> Node[Items]:
    if isinstance(node, Leaf | Call):
        return node
    if is_parallel(node):
        return replace(node, parallel=not reachable(called(node), graph) & shared)
    return rebuilt(node, [_settled(child, shared, graph) for child in children(node)])


# ---- Passing the bases of stacks: the last step of the lowering -------------------------------
#
# While functions are lowered, each one records the stacks that it uses, and a call passes the bases
# that it raises. The stacks that a function uses together with its callees are known only after
# that. Their bases become its parameters; a call passes the caller's base where it raises none.


def pass_bases(
    functions: Sequence[TreeFunction[Items]], used: Mapping[str, set[Buffer]]
) -> tuple[TreeFunction[Items], ...]:
    """Return the functions with bases as parameters. `used`: the stacks each uses itself; main
    gets none."""
    graph = call_graph(functions)
    stacks: dict[str, tuple[Buffer, ...]] = {}
    for name in graph:
        found = {buffer for callee in reachable((name,), graph) for buffer in used[callee]}
        stacks[name] = tuple(sorted(found, key=lambda buffer: buffer.slot))
    named = {function.name: function for function in functions}

    def complete(call: Call[Items], caller: str) -> Call[Items]:
        given = dict(call.registers)
        callee = named[call.function]
        passed = [(reg, given[reg]) for reg in callee.params]
        for buffer in stacks[callee.name]:
            reg = base_register(callee.name, buffer)
            passed.append((reg, given.get(reg, _base(caller, buffer))))
        return replace(call, registers=tuple(passed))

    def extended(function: TreeFunction[Items]) -> TreeFunction[Items]:
        body = _map_calls(function.body, lambda call: complete(call, function.name))
        own = () if function.name == "main" else stacks[function.name]
        bases = (base_register(function.name, buffer) for buffer in own)
        return replace(function, params=(*function.params, *bases), body=body)

    return tuple(extended(function) for function in functions)


def _base(caller: str, buffer: Buffer) -> Expr:
    if caller == "main":
        return Const(0, DType.I64)
    return Position(Index.of(base_register(caller, buffer)))


def _map_calls(node: Node[Items], change: Callable[[Call[Items]], Call[Items]]) -> Node[Items]:
    match node:
        case Leaf():
            return node
        case Call():
            return change(node)
        case _:
            return rebuilt(node, [_map_calls(child, change) for child in children(node)])


def lower(
    program: Program,
    costs: CostModel = HOST_COSTS,
    updates: InputUpdates = NO_UPDATES,
    languages: frozenset[str] = frozenset(),
    library: LeftToTorch = (),
) -> Lowered:
    """Lower every function that main reaches.

    updates: the inputs that the program changes in place (`lowering.targets`). languages: those
    in which the machine accepts user kernels. library: operators that are left to torch
    (`Options.library`).

    Raise CodegenError for a program that no machine could run.
    """
    check_updates(program, updates)
    updated = {result: parameter for parameter, result in updates.pairs}
    reached = called_from(program, program.main.body.ops)
    if "main" in reached:
        raise NotLowered("`main` calls itself", remedy="call the recursive function from it")
    externals = Externals()
    inputs = tuple(
        externals.add(
            f"in{n}", kind.dtype, kind.shape, "updated" if n in updated.values() else "input"
        )
        for n, kind in enumerate(value.tensor for value in program.main.params)
    )
    names = [name for name in program.functions if name in reached]
    if any(is_draw(op) for name in ("main", *names) for op in program.functions[name].body.walk()):
        externals.draws = externals.add(DRAWS, DType.I64, (1,), "output")
    slots = list_slots(program, names, externals)
    rows = row_results(program, names) if costs.row_results else {}
    low = _lowering(program, program.main, externals, slots, costs, languages, library, rows)
    placed = {number: inputs[parameter] for number, parameter in updated.items()}
    main, outputs = _lower_main(low, inputs, placed)
    begins_anew = names or any(buffer.kind == "list" for buffer in externals.buffers)
    if updated and begins_anew and not updates.repeatable:
        raise CodegenError(
            "a program with functions, or with lists that may grow, may have to start again, so it "
            "can change its inputs in place only if it is repeatable"
        )
    functions, stacks = [main], {"main": low.bases}
    for name in names:
        low = _lowering(
            program, program.functions[name], externals, slots, costs, languages, library, rows
        )
        functions.append(_lower_function(low))
        stacks[name] = low.bases
    settled = settle_parallel(functions)
    tree = Tree(pass_bases(settled, stacks), tuple(externals.buffers))
    made = frozenset(
        slot
        for slot, tensor in externals.tensors.items()
        if tensor.untyped_storage().data_ptr() in program.folded.results
    )
    stops = tuple(externals.stops)
    repeatable = not updated or updates.repeatable
    interface = ProgramInterface(
        inputs, outputs, externals.tensors, stops, made, repeatable=repeatable
    )
    return Lowered(tree, interface)


# ---- functions -------------------------------------------------------------------------------


def _lowering(
    program: Program,
    function: Function,
    externals: Externals,
    slots: ListSlots,
    costs: CostModel,
    languages: frozenset[str],
    library: LeftToTorch,
    rows: Rows,
) -> Lowering:
    recursive = function.name in called_from(program, function.body.ops)
    storage = list_storage(function)
    low = Lowering(
        program,
        function,
        externals,
        storage,
        lower_op,
        costs,
        recursive,
        languages,
        slots,
        library=library,
        row_sources=rows,
    )
    low.uses.count(function.body)
    low.joints = joints(function.body)
    for symbol, own in size_parameters(function).items():
        known = symbol if function is program.main else own
        low.symbols[Size.of(symbol)] = Size.of(known)
    return low


def _lower_function(low: Lowering) -> TreeFunction[Items]:
    function = low.function

    def places(role: str, values: Iterable[Value]) -> tuple[Passed, ...]:
        kinds = enumerate(value.type for value in values)
        return tuple(passed(low, function.name, role, number, kind) for number, kind in kinds)

    params, results = places("param", function.params), places("result", function.body.yields)
    targets = tuple(_row_target(low, number, one, params) for number, one in enumerate(results))
    bind_all(low, function.params, params)
    claim_destinations(low, function.body, targets)
    low.ops(function.body)
    finish(low, function.body.yields, targets)
    low.flush()
    written = _buffers(results)
    rows = (target.row for target in targets if isinstance(target, RowTarget))
    return TreeFunction(
        function.name,
        (*map(size_register, size_parameters(function).values()), *_registers(params)),
        (*_buffers(params), *written),
        written,
        (*_registers(results), *rows),
        tuple(low.locals),
        Seq(tuple(low.nodes)),
    )


def _row_target(
    low: Lowering, number: int, place: Passed, params: tuple[Passed, ...]
) -> Passed | RowTarget:
    """Return the target of result `number`, whose memory is `place`."""
    name = low.function.name
    if (name, number) not in low.row_sources:
        return place
    source = params[low.row_sources[name, number]]
    assert isinstance(place, Buffer) and isinstance(source, Buffer)
    return RowTarget(place, row_register(name, number), source)


def _buffers(places: tuple[Passed, ...]) -> tuple[Buffer, ...]:
    return tuple(place for place in places if isinstance(place, Buffer))


def _registers(places: tuple[Passed, ...]) -> tuple[Reg, ...]:
    found = (place.length if isinstance(place, ListTarget) else place for place in places)
    return tuple(place for place in found if isinstance(place, Reg))


def _lower_main(
    low: Lowering, inputs: tuple[Buffer, ...], updated: Mapping[int, Buffer]
) -> tuple[TreeFunction[Items], tuple[Output, ...]]:
    """Lower main. `updated`: the memory of results that share it with inputs, by number."""
    function = low.function
    low.mutable |= {buffer: {function.body} for buffer in updated.values()}
    for value, buffer in zip(function.params, inputs, strict=True):
        low.env[value] = stored(buffer)
        if is_register(value.type) and low.uses.is_needed(value):
            bind(low, value, low.let(stored(buffer).expr, value.hint))
    buffers: list[Buffer | None] = []
    for number, value in enumerate(function.body.yields):
        kind = value.type
        buffer = None
        if number in updated:
            pass
        elif isinstance(kind, TensorType) and (shape := low.known_extents(kind)) is not None:
            buffer = low.externals.add(f"out{number}", kind.dtype, shape, "output")
        buffers.append(buffer)
    claim_destinations(low, function.body, tuple(buffers))
    if low.externals.draws is not None:
        low.store(constant(0, DType.I64, (1,)), low.externals.draws, DRAWS)
    low.ops(function.body)
    results: list[Reg] = []
    yields = function.body.yields
    outputs: dict[int, Output] = {
        number: _finish_output(low, value, buffers[number], results)
        for number, value in enumerate(yields)
        if number not in updated
    }
    # Last, because the other results may read the memory that is changed here.
    finish(low, tuple(yields[n] for n in updated), tuple(map(LateTarget, updated.values())))
    outputs |= {number: OutputTensor(buffer, buffer.shape) for number, buffer in updated.items()}
    low.flush()
    nodes = Seq(tuple(low.nodes))
    main = TreeFunction("main", (), (), (), tuple(results), tuple(low.locals), nodes)
    return main, tuple(outputs[number] for number in range(len(yields)))


def _finish_output(
    low: Lowering, value: Value, buffer: Buffer | None, results: list[Reg]
) -> Output:
    if buffer is not None:
        finish(low, (value,), (buffer,))
        return OutputTensor(buffer, buffer.shape)
    if isinstance(value.type, TensorListType):
        view = low.list(value)
        length = low.let(Position(view.length), "length")
        results.append(length)
        return OutputList(view.buffer, length)
    lazy = low.tensor(value)
    target = low.new_result(lazy.dtype, lazy.shape)
    low.store(lazy, target, "out")
    results.extend(dim for dim in lazy.shape if isinstance(dim, Reg) and dim not in results)
    return OutputTensor(target, lazy.shape)


# ---- ops -------------------------------------------------------------------------------------


def lower_op(low: Lowering, op: Op) -> None:
    """Lower one op of any kind."""
    match op:
        case TensorOp():
            _tensor_op(low, op)
        case ConstantOp():
            buffer = low.externals.constant(op.key, low.program.constants[op.key])
            low.env[op.result] = stored(buffer)
        case LiteralOp():
            dtype = op.result.tensor.dtype
            low.env[op.result] = Lazy(dtype, (), emit.number(op.value, dtype))
        case SizeOp():
            _size(low, op)
        case _:
            lower_control(low, op)


def _size(low: Lowering, op: SizeOp) -> None:
    """Put the size into a separate register, because a loop may change the number's own."""
    register = low.let(low.scalar(op.number), str(op.size), op.symbol.usual)
    high = op.symbol.high
    most = Size.of(high) if high is not None else None
    if op.most is not None and low.has_symbols(op.most):
        most = low.most(low.formula(op.most)) or most
    low.ranges[register] = (op.symbol.low, None if most is None else most.dim)
    low.symbols[op.size] = register
    low.env[op.result] = register_value(register)


_NO_RULE = "these arguments have no native lowering"


def _native(low: Lowering, op: TensorOp) -> tuple[tuple[Lazy, ...] | None, str]:
    """Return the results of an op by its rule or by the user's kernel; or None and the reason."""
    kernel = kernel_for(op.target)
    if kernel is not None:
        return lower_kernel(low, op, kernel)
    if is_left(op, low.library):
        by_cost = isinstance(low.library, frozenset)
        return None, "chosen by cost" if by_cost else "left to torch by Options.library"
    rule = find_rule(op.target)
    if rule is None:
        return None, "no native lowering"
    return rule(low, op), _NO_RULE


def _tensor_op(low: Lowering, op: TensorOp) -> None:
    _check_relations(low, op)
    results, reason = _native(low, op)
    if results is None:
        try:
            library_call(low, op, reason)
        except LibraryLayoutError as error:
            error.target = op.target
            raise
        return
    for value, lazy in zip(op.results, results, strict=True):
        low.settle(value, lazy)


def _check_relations(low: Lowering, op: TensorOp) -> None:
    """Emit checks that sizes known only at run time fit together."""
    for relation in relations_of_sizes(op):
        left, right = (
            Position(Index.of(low.extent(side))) for side in (relation.left, relation.right)
        )
        holds = Apply(COMPARISONS[relation.sign].__name__, (left, right), DType.BOOL)
        low.check(holds, CheckCode.INDEX, low.stop(misfit(op, relation)), left)
