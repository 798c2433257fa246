"""Functions that run in Python, with segments of them as native programs."""
