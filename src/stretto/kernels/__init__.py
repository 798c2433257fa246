"""What machines share on the way from operators to kernels.

`split_reductions` and `split_sorts` cut up operators that would keep one unit busy for too long;
`fuse` and `join` group the operators of a leaf; `contraction` and `products` recognise products;
`panels` describes packed constants. Each machine's `select` calls these; it says which `variants`
there are of each kernel, tilings and templates of its own, and a chooser takes one of each.
"""
