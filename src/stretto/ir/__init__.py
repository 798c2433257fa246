"""Programs: SSA values, ops with regions and functions, with printer, parser, verifier and
rewriting.

`sizes` and `size_bounds` define the symbolic sizes in types; all later stages use them too.
"""
