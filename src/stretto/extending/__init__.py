"""Kernels of users: how they are declared (`declare`, `regions`), and checked (`check`)."""
