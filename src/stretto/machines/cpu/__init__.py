"""The CPU machine: `printer/` prints C++, `native` runs what was built."""
