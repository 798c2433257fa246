"""Kernels of users: their declaration (`declare`) and check (`check`), the tensors that their
functions receive (`views`), and their sources in programs (`cpp_source`, `triton_source`).

`device/user_kernels.py` has the record of a kernel."""
