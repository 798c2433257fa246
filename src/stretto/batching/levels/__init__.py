"""One native program of all blocks, which runs tables of steps.

`capture` builds the Program of a block for one instance, `batched` the one for n rows,
`program` the Program that loops over steps; `LevelProgram` is the latter built for a machine,
ready to be called. `tables` defines the tables.
"""

from stretto.batching.levels.program import LevelProgram
from stretto.batching.levels.tables import Layout, Tables, pool_types

__all__ = ["Layout", "LevelProgram", "Tables", "pool_types"]
