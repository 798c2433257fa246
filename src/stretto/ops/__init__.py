"""Properties of tensor operators, most of them taken from torch itself.

`infer` finds result types by running an operator on fake tensors. `properties` tells what an
operator may do, from torch's tags and schemas and the entries of `table`. `positions` and
`bounds` tell which positions an op reads and what eager raises if one is out of range, `effects`
which ops must run in any case, `arguments` names an op's arguments, `symints` converts sizes to
and from torch's, and `library` registers stretto's own operators with torch.
"""
