"""Branches and loops on traced values.

Each arm or body is traced in its own region, and the Python state is restored afterwards.
`join` merges the states at the ends of two arms; `carry` finds the state that a loop carries
from one iteration to the next (`carried_options` for slots that hold several kinds of values);
`branches` and `loops` emit the ops. `learned` records the results of tracing a loop for the
next time that it is traced; `settled` handles branches of which a program has one arm only.
"""
