"""A DeviceProgram as C++: `program` is the entry, then functions, kernels, stages."""
