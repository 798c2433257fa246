"""A DeviceProgram as one Triton kernel: `program` is the entry, `parts/` what all programs have."""
