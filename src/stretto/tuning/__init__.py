"""Measurements on this device, stored on disk (`database`): parameters of the cost model and times
of kernels, for one device and compiler."""
