"""The syntax of the small values in the device language, and of the fields of its records."""

from __future__ import annotations

import json
from typing import Any

from stretto.device.expr import Access, Buffer, Expr, Extent, Reg
from stretto.device.expr_text import ExprParser, ExprPrinter, name_text, number_text
from stretto.grammar import Language, Syntax, converted

MARK = "\0"
"""Placeholder for the declarations of buffers until all buffers of a text are known."""

NAME: Syntax[str] = Syntax(lambda _, value: name_text(value), ExprParser.name)
STRING: Syntax[str] = Syntax(lambda _, value: json.dumps(value), ExprParser.string)
INTEGER: Syntax[int] = Syntax(lambda _, value: str(value), ExprParser.integer)
NUMBER: Syntax[Any] = Syntax(lambda _, value: number_text(value), ExprParser.number)
BUFFER = Syntax(ExprPrinter.buffer, ExprParser.buffer)
REGISTER = Syntax(ExprPrinter.register, ExprParser.register)
SIZE = Syntax(ExprPrinter.size, ExprParser.size)
EXTENT = Syntax(ExprPrinter.extent, ExprParser.extent)
ACCESS = Syntax(ExprPrinter.access, ExprParser.access)
EXPR = Syntax(ExprPrinter.expr, ExprParser.expr)
DECLARATIONS: Syntax[None] = Syntax(lambda _printer, _value: MARK, ExprParser.declarations)
"""The place in a text where all buffers that it names are declared."""

record = Language(
    {
        str: NAME,
        int: INTEGER,
        float: converted(NUMBER, float, float),
        Buffer: BUFFER,
        Reg: REGISTER,
        Extent: EXTENT,
        Access: ACCESS,
        Expr: EXPR,
    }
).record
