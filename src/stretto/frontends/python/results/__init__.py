"""The result of a capture.

`captured` is the Program with the bindings of its inputs and the description of its outputs;
`inputs` makes the params of main, `output` turns the function's result into yields, `effects`
plans the changes of the user's objects that are made after each run, and `watch` checks at each
call that the Program is still valid.
"""
