"""Remove stores that nobody reads.

While a task is printed, its stages store even what they pass to each other in registers, since
another kernel may read it. Once all kernels of a program are printed, it is known what is read from
memory; stores to local buffers that are never read are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from stretto.device.accesses import Phase
from stretto.device.expr import Buffer
from stretto.device.plan import Launch, Library, Plan
from stretto.device.program import DeviceProgram
from stretto.device.regions import statement_regions
from stretto.device.tree import Call, Leaf, control_buffers, rotation, walk
from stretto.machines import statements as code
from stretto.machines.cuda.printer.kernel import TritonKernel

Texts = Mapping[str, TritonKernel]


def without_dead_stores(
    texts: Texts, program: DeviceProgram, kept: Collection[Buffer]
) -> dict[str, TritonKernel]:
    """Return the kernels of a program without dead stores, by name. kept: buffers that are read
    outside of the program."""
    phases = (phase for text in texts.values() for phase in text.phases)
    read = {*kept, *_read_by_control(program)}.union(*(phase.reads for phase in phases))
    return {name: _without(text, read) for name, text in texts.items()}


def handed_over(plan: Plan) -> frozenset[Buffer]:
    """Return the buffers that more than one launch, or any library call, of a plan accesses, and
    those that calls pass or loops rotate."""
    if plan.is_whole:
        return frozenset()
    nodes = [node for function in plan.tree.functions for node in walk(function.body)]
    seen, several = set[Buffer](), set[Buffer]()
    for node in nodes:
        match node:
            case Leaf(Launch(program)):
                touched = _touched(program)
                several |= seen & touched
                seen |= touched
            case Leaf(Library(call)):
                several.update(one for one in call.operands if isinstance(one, Buffer))
            case Call(tensors=tensors):
                several.update(access.buffer for _, access in tensors)
            case _:
                several.update(buffer for pair in rotation(node) for buffer in pair)
    return frozenset(several)


def _touched(program: DeviceProgram) -> set[Buffer]:
    """Return the buffers that a launch's program accesses."""
    operators = [stage.operator for kernel in program.kernels for stage in kernel.stages]
    found = {load.access.buffer for operator in operators for load in operator.reads()}
    found |= {operator.out.buffer for operator in operators}
    return found | {*_read_by_control(program)} | {*program.tree.main.tensors}


def _read_by_control(program: DeviceProgram) -> Iterator[Buffer]:
    """Yield the buffers that statements and control nodes read, and those whose address may be
    another buffer's (tensor params, rotated buffers)."""
    for function in program.tree.functions:
        yield from function.tensors
    for node in program.tree.walk():
        yield from control_buffers(node)
    for schedule in program.tree.leaves():
        for item in schedule.statements:
            yield from (region.buffer for region in statement_regions(item))


def _without(text: TritonKernel, read: Collection[Buffer]) -> TritonKernel:
    def live(phase: Phase) -> Phase:
        return Phase(phase.reads, frozenset(b for b in phase.writes if not _is_dead(b, read)))

    function = replace(text.function, body=_live(text.function.body, read))
    return replace(text, function=function, phases=tuple(map(live, text.phases)))


def _live(block: code.Statements, read: Collection[Buffer]) -> code.Statements:
    return tuple(
        code.with_blocks(statement, lambda inner: _live(inner, read))
        for statement in block
        if not (isinstance(statement, code.Store) and _is_dead(statement.buffer, read))
    )


def _is_dead(buffer: Buffer | None, read: Collection[Buffer]) -> bool:
    return buffer is not None and buffer.kind == "local" and buffer not in read
