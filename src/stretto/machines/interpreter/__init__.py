"""The interpreter as a machine: it runs the optimised Program, without kernels or a schedule."""
