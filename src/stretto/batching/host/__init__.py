"""The host part of a batch: an InstanceProgram as C++, which walks instances and records blocks."""
