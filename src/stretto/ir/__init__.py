"""The Program: SSA values, ops with regions, functions; printed, parsed, verified, rewritten.

Types have sizes (`sizes`, `size_bounds`), which all later stages share.
"""
