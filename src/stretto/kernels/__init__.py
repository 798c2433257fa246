"""From operators to kernels: the passes and analyses that all machines share.

`split_reductions` cuts up operators that would occupy one unit for too long;
`fuse` groups the operators of a leaf; `contraction` recognises products; `panels` describes
packed constants. Each machine's `select` calls these and lists the `variants` of each kernel
with its own tilings and templates; a chooser takes one variant of each.
"""
