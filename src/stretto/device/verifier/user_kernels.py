"""What the function of a user is called with is what its kernel declares.

It knows of no parts of a dim that has no index, and not that a tensor may be the result.
"""

from __future__ import annotations

from stretto.device.expr import Apply, Load
from stretto.device.operator import Combine, Kernel, Stage
from stretto.device.user_kernels import kernel_of, whole_dims
from stretto.errors import VerifyError


def check_user_stage(kernel: Kernel, stage: Stage) -> None:
    """Raises VerifyError for a stage that calls a kernel of a user otherwise than that says."""
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
