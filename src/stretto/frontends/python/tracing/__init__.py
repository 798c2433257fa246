"""The tracer, and the values that the user's code sees while it runs once on traced tensors.

`tensor` defines the traced tensor: a chain of views on a storage. `tracer` builds the
blocks of the Program and tracks the value of every storage at the point being traced. The
other modules provide the signals that end tracing early (`signals`), the user's line
(`locations`), the variables and `try` blocks of active calls (`frames`), shapes without
data (`fakes`), sizes known at the call (`sizes`), knowledge from earlier calls and attempts
(`history`), the contents of tensors (`contents`), and the check which calls can be captured
at all (`admission`). No module here handles control flow.
"""
