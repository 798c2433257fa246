"""One native program of all blocks, which runs tables of steps.

`capture` builds the Program of a block for one instance, `batched` the one for n rows,
`program` the Program that loops over steps; `LevelProgram` is the latter built for a machine,
ready to be called. `tables` defines the tables.
"""

from stretto.batching.levels.level_program import LevelProgram
from stretto.batching.levels.tables import TableLayout, Tables, pool_types

__all__ = ["LevelProgram", "TableLayout", "Tables", "pool_types"]
