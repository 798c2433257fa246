"""Kernels of users: their declaration (`declare`), Triton sources (`triton_source`) and check
(`check`)."""
