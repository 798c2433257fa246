"""The rules of the pass `simplify`, by what the op works on: `algebra`, `views`, `lists`.

A rule looks at an op and at what makes its operands, and gives a value or a cheaper op for it.
"""
