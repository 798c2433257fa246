"""Rules of the pass `simplify` for arithmetic and views, in `algebra`.

A rule examines an op and the ops that define its operands, and returns a value or a cheaper
op for it.
"""
