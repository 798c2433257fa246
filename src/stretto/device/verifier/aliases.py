"""Check that memory which is written has one name in every function.

Frames give each local buffer separate bytes while it is in use (`initialisation`); this
module checks the memory that calls bind to params, and the buffers of single kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from stretto.device.aliases import Bindings, Bound, bindings, param_pairs
from stretto.device.expr import Buffer
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.regions import Region, overlap, written_buffers
from stretto.device.tree import Call, Leaf, TreeFunction, calls, leaves, walk
from stretto.device.verifier.form import kernel_buffers
from stretto.device.verifier.initialisation import bound_region
from stretto.device.verifier.places import Places
from stretto.device.verifier.touched import Touched
from stretto.errors import VerifyError


def check_aliases(program: DeviceProgram, places: Mapping[str, Places], touched: Touched) -> None:
    """Raise VerifyError if written memory has two names, or if a function does not declare a param
    that it writes."""
    functions = {function.name: function for function in program.tree.functions}
    stands = bindings(program.tree)

    def meet(name: str, pairs: Collection[frozenset[Buffer]], one: Bound, other: Bound) -> bool:
        regions = (bound_region(param, access, write=False) for param, access in (one, other))
        return _may_meet(*regions, places=places[name], stands=stands[name], pairs=pairs)

    pairs = param_pairs(program.tree, meet)
    for function in functions.values():
        written = _written(function, functions, touched)
        for buffer in written:
            if buffer.kind == "param" and buffer not in function.written:
                raise VerifyError(
                    f"function {function.name} writes {buffer.name}, which it does not declare"
                )
        _check_externals(function, written, stands[function.name], touched)
        name = function.name
        for call in calls(function.body):
            _check_call(call, functions[call.function], partial(meet, name, pairs[name]))
        for kernel in {kernel for leaf in leaves(function.body) for kernel in leaf.kernels}:
            _check_kernel(kernel, places[name], touched)


def _written(
    function: TreeFunction[Schedule],
    functions: Mapping[str, TreeFunction[Schedule]],
    touched: Touched,
) -> set[Buffer]:
    """Return the buffers that a function writes, itself or through params of its callees."""
    found: set[Buffer] = set()
    for schedule in leaves(function.body):
        for name in schedule.kernels:
            found |= written_buffers(touched.kernels[name])
    for call in calls(function.body):
        written = functions[call.function].written
        found |= {access.buffer for param, access in call.tensors if param in written}
    return found


def _check_externals(
    function: TreeFunction[Schedule], written: set[Buffer], stands: Bindings, touched: Touched
) -> None:
    """Check that no param is bound to an external buffer that the function also accesses by its
    own name."""
    own = {*_accessed(function, touched)}
    for param, externals in stands.items():
        for buffer in sorted(own & externals, key=lambda one: one.name):
            if param in written or buffer in written:
                raise VerifyError(
                    f"function {function.name} accesses {buffer.name} by its name and as "
                    f"{param.name}, and writes it"
                )


def _accessed(function: TreeFunction[Schedule], touched: Touched) -> Iterator[Buffer]:
    for node in walk(function.body):
        match node:
            case Leaf(schedule):
                for name in schedule.kernels:
                    yield from kernel_buffers(touched.kernels[name])
                for item in schedule.statements:
                    yield from (region.buffer for region in touched.regions(item))
            case Call(tensors=tensors):
                yield from (access.buffer for _, access in tensors)
            case _:
                pass


def _may_meet(
    a: Region,
    b: Region,
    *,
    places: Places,
    stands: Bindings,
    pairs: Collection[frozenset[Buffer]],
) -> bool:
    """Return True if two regions of a function may overlap in some call of it. Params are compared
    by `pairs`: two that are bound to one external buffer in different calls do not overlap."""
    if a.buffer.name == b.buffer.name:
        return overlap(a, b)
    if places.meet(a, b) or frozenset((a.buffer, b.buffer)) in pairs:
        return True
    for one, other in ((a.buffer, b.buffer), (b.buffer, a.buffer)):
        if one.kind == "param" and other.kind != "param":
            return other in stands[one]
    return False


def _check_call(
    call: Call[Schedule], callee: TreeFunction[Schedule], meet: Callable[[Bound, Bound], bool]
) -> None:
    for param, access in call.tensors:
        for other, seen in call.tensors:
            if param is other or param not in callee.written:
                continue
            if meet((param, access), (other, seen)):
                raise VerifyError(
                    f"a call of {call.function} passes {access.buffer.name} as {other.name} and "
                    f"as {param.name}, which is written"
                )


def _check_kernel(name: str, places: Places, touched: Touched) -> None:
    """Check that a kernel does not write memory under a second name: its tasks, and the elements
    of a stage, have no order."""
    regions = touched.kernel(name)
    names = {region.buffer.name for region in regions}
    for region in regions:
        if region.write and len(names.intersection(places.near(region.buffer.name))) > 1:
            for other in regions:
                if other.buffer.name != region.buffer.name and places.meet(region, other):
                    raise VerifyError(
                        f"kernel {name} accesses {other.buffer.name} and writes "
                        f"{region.buffer.name}, which share memory"
                    )
