"""The front door: what happens between a user's call and the machine that runs its program.

`compiled` is what `stretto.compile` returns. `programs` finds the program of a call: by the key of
the call (`signatures`), else by a new compile (`compiler`), which makes an `entry`. `eager` and
`fallback` treat calls that no program can serve. `dynamo` is the backend of `torch.compile`.
`save` and `load` write compiled functions to files and read them back.
"""
