"""Benchmarks of stretto: a zoo of dynamic models, and a harness to measure them with peers."""
