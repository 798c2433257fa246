"""Ablations and growth of scheduling: what kernels, policies and waits are worth and cost."""
