"""Check that memory which is written has one name in every function.

Frames give each local buffer separate bytes while it is in use (`initialisation`); this
module checks the memory that calls bind to params, and the buffers of single kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import combinations

from stretto.device.expr import Buffer
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.regions import Region, overlap, written_buffers
from stretto.device.tree import Call, Leaf, TreeFunction, calls, leaves, walk
from stretto.device.verifier.form import kernel_buffers
from stretto.device.verifier.initialisation import bound_region
from stretto.device.verifier.places import Places
from stretto.device.verifier.touched import Touched
from stretto.errors import VerifyError

Stands = Mapping[str, Mapping[str, frozenset[str]]]
"""For each function and each of its params, the external buffers that it may be bound to."""

Pairs = Mapping[str, Collection[frozenset[str]]]
"""For each function, the pairs of its params that one call may bind to overlapping memory."""


def check_aliases(program: DeviceProgram, places: Mapping[str, Places], touched: Touched) -> None:
    """Raise VerifyError if written memory has two names, or if a function does not declare a param
    that it writes."""
    functions = {function.name: function for function in program.tree.functions}
    stands = _stands(functions)
    pairs = _pairs(functions, places, stands)
    for function in functions.values():
        written = _written(function, functions, touched)
        for buffer in written:
            if buffer.kind == "param" and buffer not in function.written:
                raise VerifyError(
                    f"function {function.name} writes {buffer.name}, which it does not declare"
                )
        _check_externals(function, {b.name for b in written}, stands, touched)
        name = function.name
        meet = partial(_may_meet, places=places[name], stands=stands[name], pairs=pairs[name])
        for call in calls(function.body):
            _check_call(call, functions[call.function], meet)
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


def _stands(functions: Mapping[str, TreeFunction[Schedule]]) -> Stands:
    stands: dict[str, dict[str, frozenset[str]]] = {
        name: {param.name: frozenset[str]() for param in function.tensors}
        for name, function in functions.items()
    }
    changed = True
    while changed:
        changed = False
        for name, function in functions.items():
            for call in calls(function.body):
                for param, access in call.tensors:
                    theirs = stands[call.function]
                    more = theirs[param.name] | _memory(access.buffer, stands[name])
                    changed = changed or more != theirs[param.name]
                    theirs[param.name] = more
    return stands


def _memory(buffer: Buffer, params: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the external buffers that a name in a function may refer to."""
    if buffer.kind == "param":
        return params[buffer.name]
    return frozenset() if buffer.kind in ("local", "items") else frozenset({buffer.name})


def _check_externals(
    function: TreeFunction[Schedule], written: set[str], stands: Stands, touched: Touched
) -> None:
    """Check that no param is bound to an external buffer that the function also accesses by its
    own name."""
    own = {buffer.name for buffer in _accessed(function, touched)}
    for param, externals in stands[function.name].items():
        for name in sorted(externals & own):
            if param in written or name in written:
                raise VerifyError(
                    f"function {function.name} accesses {name} by its name and as {param}, "
                    "and writes it"
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


def _pairs(
    functions: Mapping[str, TreeFunction[Schedule]], places: Mapping[str, Places], stands: Stands
) -> Pairs:
    found = {name: set[frozenset[str]]() for name in functions}
    changed = True
    while changed:
        changed = False
        for name, function in functions.items():
            meet = partial(_may_meet, places=places[name], stands=stands[name], pairs=found[name])
            for call in calls(function.body):
                theirs = found[call.function]
                before = len(theirs)
                for (one, a), (other, b) in combinations(_bound(call), 2):
                    if meet(a, b):
                        theirs.add(frozenset((one.name, other.name)))
                changed = changed or len(theirs) != before
    return found


def _bound(call: Call[Schedule]) -> list[tuple[Buffer, Region]]:
    """Return the params of a call with the regions that it binds them to."""
    return [(param, bound_region(param, access, write=False)) for param, access in call.tensors]


def _may_meet(
    a: Region,
    b: Region,
    *,
    places: Places,
    stands: Mapping[str, frozenset[str]],
    pairs: Collection[frozenset[str]],
) -> bool:
    """Return True if two regions of a function may overlap in some call of it. Params are compared
    by `pairs`: two that are bound to one external buffer in different calls do not overlap."""
    if a.buffer.name == b.buffer.name:
        return overlap(a, b)
    if places.meet(a, b) or frozenset((a.buffer.name, b.buffer.name)) in pairs:
        return True
    for one, other in ((a.buffer, b.buffer), (b.buffer, a.buffer)):
        if one.kind == "param" and other.kind != "param":
            return other.name in stands[one.name]
    return False


def _check_call(
    call: Call[Schedule], callee: TreeFunction[Schedule], meet: Callable[[Region, Region], bool]
) -> None:
    bound = _bound(call)
    for param, region in bound:
        for other, seen in bound:
            if param is other or param not in callee.written:
                continue
            if meet(region, seen):
                raise VerifyError(
                    f"a call of {call.function} passes {region.buffer.name} as {other.name} and "
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
