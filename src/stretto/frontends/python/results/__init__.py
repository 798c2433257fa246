"""What a capture hands to the caller.

`captured` is the Program with how to bind its inputs and rebuild its outputs, `output` makes
yields of what the function returns, `effects` plans which changes of the user's objects are made
after each run. At each call, `signature` says which Program a call needs, and `watch` whether it
still holds.
"""
