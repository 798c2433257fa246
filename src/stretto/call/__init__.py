"""The public entry points: everything between a user's call and the machine that runs its program.

`compiled` is the object that `stretto.compile` returns. `programs` finds the program of a call: by
the key of the call (`signatures`), else by a new compile (`compiler`), which makes an `entry`.
`eager` and `fallback` handle calls that no program can serve. `dynamo` is the backend of
`torch.compile`. `save` writes compiled functions to files, `loaded` reads them back.
"""
