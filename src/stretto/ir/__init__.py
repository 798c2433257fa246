"""The Program: SSA values, ops with regions, functions; printed, parsed, verified, rewritten."""
