"""`make fuzz`: random programs, and programs that others wrote, compared with eager PyTorch.

A *part* (`parts.py`) gives cases, a case is run in a worker process with a time limit
(`workers.py`), and ends in a verdict (`outcome.py`). The part "functions" writes random Python
(`writer.py`), runs it on every backend (`trial.py`), and compares it with eager in float32 and
float64 (`compare.py`, `reference.py`). What is written follows from choices that hypothesis draws
(`choices.py`) from a grammar (`grammar.py`), so that a failing function can be made smaller.
"""
