"""A family of Python's constructs that random functions are made of, as text with slots.

The slots are those of `templates.py`, and `{u}` a new name, `{v}` a variable with a float tensor,
`{p}` a Python float, `{s}` a text, `{o}` an object of the class Model. Most numbers, floats and
texts that fill them depend on tensors. Statements are tried on sample values before they are
written, so that a template need not fit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Constructs that belong together.

    module: classes and objects of the module, which last from call to call.
    start: the first lines of the function.
    statements, numbers, tests: templates.
    """

    module: str = ""
    start: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
