"""Analyses that passes share: dependences in loops, affine integers, list lengths, constant
products.

None of them changes a Program, except the normalisation of loops in `loops`, which brings
loops into the form that the passes expect.
"""
