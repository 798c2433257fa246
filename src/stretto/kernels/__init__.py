"""From operators to kernels: what is fused, and how each operator is computed.

`fuse` and `join` group the operators of a leaf; `split_reductions` and `split_sorts` cut up what
one unit would be too long at; `contraction` and `products` recognise products; `select` chooses
templates and tiles for the CPU, `select_cuda` with `cuda_templates` for GPUs.
"""
