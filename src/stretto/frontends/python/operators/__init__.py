"""From calls of ATen to operators of the Program.

`dispatch` gets every call that the traced function makes. It records it as a view (`views`),
as the pure form of a write in place (`functional`, `overlap`), by a rule or a decomposition
(`decompositions`, `ordering`), or as it is. `eager` asks PyTorch what it refuses, `value_checks`
makes checks of what it refuses depending on values.
"""
