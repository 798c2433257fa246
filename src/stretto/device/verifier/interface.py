"""What goes in, what comes out and what a check raises: it fits the program."""

from __future__ import annotations

from collections.abc import Iterator

from stretto.device.expr import Apply, Buffer, Const, Reg, parts
from stretto.device.forms import OutputList, OutputTensor, Packing, ProgramInterface
from stretto.device.program import DeviceProgram
from stretto.device.tree import Check, CheckCode, leaves
from stretto.errors import VerifyError

NUMBERED = (CheckCode.ASSERTION, CheckCode.INDEX)
"""The codes of checks whose subject is the number of a failure."""


def check_interface(interface: ProgramInterface, program: DeviceProgram) -> None:
    """Raises VerifyError for inputs, outputs, constants and failures that the program lacks."""
    externals = set(program.tree.externals)
    results = set(program.tree.main.results)
    for buffer in interface.inputs:
        if buffer not in externals or not buffer.is_input:
            raise VerifyError(f"input {buffer.name} is no input buffer of the program")
    for output in interface.outputs:
        _check_output(output, externals, results)
    slots = {buffer.slot: buffer for buffer in externals}
    for slot, tensor in interface.constants.items():
        buffer = slots.get(slot)
        if buffer is None or buffer.kind != "constant":
            raise VerifyError(f"there is no constant in slot {slot}")
        if tuple(tensor.shape) != buffer.shape or tensor.dtype is not buffer.dtype.torch:
            raise VerifyError(f"constant {buffer.name} is not of the type of its buffer")
    for packing in interface.packings:
        if not {packing.buffer, packing.source} <= externals or packing.source.kind != "constant":
            raise VerifyError(f"{packing.buffer.name} is packed from no constant of the program")
        if packing.group < 1 or packing.buffer.shape[-1] != packing.lanes * packing.group:
            raise VerifyError(f"{packing.buffer.name} has panels of another width")
        if not _can_be_transformed(packing):
            raise VerifyError(f"{packing.source.name} cannot be transformed for tiles of pixels")
    for subject in sorted(set(_subjects(program))):
        if not 0 <= subject < len(interface.stops):
            raise VerifyError(f"a check raises failure {subject}, which is missing")


def _can_be_transformed(packing: Packing) -> bool:
    if packing.line:
        return packing.tile in (2, 4) and packing.line in (2, 3) and len(packing.source.shape) == 4
    return packing.tile == 0 or (packing.tile in (2, 4) and packing.source.shape[2:] == (3, 3))


def _subjects(program: DeviceProgram) -> Iterator[int]:
    """The numbers of the failures that checks of control and of kernels raise."""
    exprs = [stage.operator.value for kernel in program.kernels for stage in kernel.stages]
    for function in program.tree.functions:
        for schedule in leaves(function.body):
            for item in schedule.statements:
                exprs += item.exprs
                if isinstance(item, Check) and item.code in NUMBERED:
                    yield item.subject
    for expr in exprs:
        for part in parts(expr):
            match part:
                case Apply("checked", (_, _, Const(number)), _):
                    yield int(number)
                case _:
                    pass


def _check_output(
    output: OutputTensor | OutputList, externals: set[Buffer], results: set[Reg]
) -> None:
    main = output.buffer
    if main not in externals:
        raise VerifyError(f"output {main.name} is no external buffer of the program")
    match output:
        case OutputTensor(shape=shape):
            needed = {dim for dim in shape if isinstance(dim, Reg)}
        case OutputList(length=length):
            needed = {length}
    for register in needed - results:
        raise VerifyError(
            f"the size of output {main.name} is in {register.name}, no result of main"
        )
