"""The emulator: units of a DeviceProgram in random order, every access checked for races."""
