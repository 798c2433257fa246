"""The emulator: units of a DeviceProgram in random order, every access checked for races.

`machine` is its record and gives a program its memory, `run` lets the units take turns at every
item, and `memory` shares bytes among them and records the last accesses to each.
"""
