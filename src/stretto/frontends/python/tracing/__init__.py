"""The tracer, and what the user's code sees while it runs once on traced tensors.

`tensor` has the traced tensor: a chain of views on a storage. `tracer` builds the blocks of the
Program and knows what every storage holds at the place being traced. Around them stand what ends
tracing early (`signals`, `poison`, `tries`), the user's line (`locations`), the variables of
active calls (`frames`), shapes without data (`fakes`, `evaluate`), and which calls can be
captured at all (`admission`). Nothing here knows control flow.
"""
