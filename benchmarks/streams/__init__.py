"""Streams of calls whose sizes change with every call: the gain of one program for all sizes.

`models` has the programs and how sizes are drawn, `systems` the systems that run them, `worker`
runs one stream on one system in a separate process, and `suite` runs all of them in turns.
"""
