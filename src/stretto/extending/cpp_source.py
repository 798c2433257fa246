"""C++ source of users inside a program, and the compiler's messages about it."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace

from stretto.device.operator import Kernel
from stretto.device.user_kernels import UserKernel, called_kernels
from stretto.errors import BuildError, SourceLocation


def namespace(kernel: UserKernel) -> str:
    """Return the namespace of the user's source in a program."""
    return f"user_{kernel.digest}"


def definition(kernel: UserKernel) -> str:
    """Return the user's source in a separate namespace, after its includes. Its line numbers are
    kept, so that the compiler's messages name lines of the source."""
    lines = (kernel.cpp or "").split("\n")
    is_include = [line.lstrip().startswith("#include") for line in lines]
    includes = [line for line, is_one in zip(lines, is_include, strict=True) if is_one]
    rest = ["" if is_one else line for line, is_one in zip(lines, is_include, strict=True)]
    head = f'namespace {{ namespace {namespace(kernel)} {{\n#line 1 "{kernel.name}"'
    return "\n".join([*includes, head, *rest, "}}", '#line 1 "program.cpp"'])


def located(error: BuildError, kernels: Iterable[Kernel]) -> BuildError:
    """Return the error with the line of a user's source that the compiler complains about; other
    errors unchanged."""
    for kernel in sorted(called_kernels(kernels), key=lambda kernel: kernel.name):
        found = _located(error, kernel)
        if found is not None:
            return found
    return error


@contextmanager
def compile_error(kernel: UserKernel) -> Generator[None]:
    """Raise a BuildError inside the block with the line of the kernel's source, if it comes from
    there."""
    try:
        yield
    except BuildError as error:
        raise _located(error, kernel) or error from error


def _located(error: BuildError, kernel: UserKernel) -> BuildError | None:
    pattern = rf"^{re.escape(kernel.name)}:(\d+):.*?error: (.*)$"
    match = re.search(pattern, error.message, re.MULTILINE)
    if match is None or kernel.cpp is None:
        return None
    number = int(match[1])
    lines = kernel.cpp.split("\n")
    line = lines[number - 1].strip() if number <= len(lines) else ""
    place: SourceLocation | None = None
    if kernel.location is not None:
        place = replace(kernel.location, line=kernel.location.line + number - 1)
    said = [text for text in error.message.splitlines()[2:] if kernel.name in text]
    return BuildError(
        f"the C++ of the kernel of {kernel.name} does not compile, line {number}: {match[2]}\n"
        + "\n".join(said or [match[0]]),
        location=place,
        remedy="correct the source; see stretto.kernel for the arguments of the function",
        op=line,
    )
