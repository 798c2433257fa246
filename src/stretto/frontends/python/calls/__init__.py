"""Tracing of the calls that the user's code makes.

`call` chooses how a call is traced: user functions inline, or as IR functions if they recurse
(`recursion`, `outline`); builtins by rules for traced values (`builtins`); torch's own control
flow as branches and loops (`torch_code`). Functions whose value changes from call to call, or
that act on the outside world, are refused (`special`); output is journalled (`effects`).
"""
