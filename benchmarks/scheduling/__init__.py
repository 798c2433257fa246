"""Measurements of scheduling: gains of kernels, policies and waits, and the growth of scheduling
time."""
