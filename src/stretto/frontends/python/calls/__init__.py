"""Calls made by the user's code.

`call` decides: user functions are traced inline, or as IR functions where they recurse
(`recursion`, `outline`, `surroundings`), builtins know traced values (`builtins`), torch's own
control flow becomes branches and loops (`torch_control`), and functions with another value at
each call are refused (`outside`).
"""
