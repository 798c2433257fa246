"""From ATen calls to operators of the Program.

`dispatch` receives every call that the traced function makes. It records it as a view (`views`), as
the pure form of an in-place write (`functional`), by a rule or a decomposition (`decompositions`,
`replacements`, `selections`), as a random draw (`draws`), or as it is. `checks` finds out what
eager PyTorch refuses, and turns refusals that depend on values into checks. `memory` handles
methods that access memory directly, and writes to overlapping views.
"""
