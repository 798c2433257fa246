"""Families of operators: what stretto knows about an operator stands in the file of its family.

A family fills three tables, which lie below: the facts about its operators (`ops.table`, with how
they are batched), operators of stretto's own (`ops.library`), and the rules that lower them to
expressions (`lowering.rules`). All files of this folder are imported here, so a new file need not
be listed anywhere; `ops.table.load_families` imports this folder when a table is first read.
"""

from importlib import import_module
from pkgutil import iter_modules

FAMILIES = tuple(import_module(f"{__name__}.{item.name}") for item in iter_modules(__path__))
