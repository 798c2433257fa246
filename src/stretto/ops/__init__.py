"""What must be known of tensor operators, most of it taken from torch itself.

`infer` finds result types by running an operator on fake tensors. `properties` says what an
operator may do: it joins torch's tags and schemas with the entries of `table`. `positions` and
`bounds` say which positions an op reads and what eager raises when one is out of range, `arguments`
names an op's arguments, and `library` registers stretto's own operators with torch.
"""
