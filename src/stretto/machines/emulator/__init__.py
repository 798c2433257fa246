"""The emulator: units of a DeviceProgram in random order, every access checked for races.

`machine` is its record, `executable` gives a program memory, `run` lets units take turns at every
item, `memory` shares bytes among them, and `shadow` knows who accessed each of those last.
"""
