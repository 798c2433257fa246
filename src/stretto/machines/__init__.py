"""The machines that run DevicePrograms, a folder each: printer, builder, executable.

`cpu` prints C++ for native threads, `cuda` Triton for one persistent kernel (also interpreted
without a GPU), `emulator` runs the program itself, task by task. They do not know each other.
"""
