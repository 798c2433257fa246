"""What one unit of 132 of an H200 can do, by design figures: they rank choices, no more."""

from __future__ import annotations

BANDWIDTH = 4.0e10
"""Bytes per second that one unit reads while all do."""
LATENCY = 7e-7
"""Seconds from a load to its use, and to the next load behind a loop."""
STAGE = 2e-7
"""Seconds of a barrier between two stages of a task."""
FUNCTIONS = 1.5e11
"""Function applications per second of one unit."""
FMA = 4e11
"""Floating-point operations per second without tensor cores."""
TENSOR = 7e11
TENSOR_HALF = 4e12
"""Those of tensor cores: f32 as three products of TF32; f16 and bf16."""
DOUBLE = 2e11
"""Those in f64."""
DEPTH_STEP = 1.2e-7
"""Seconds of one step along the depth of a product, however small."""
TASK = 5e-8
"""Seconds to start a task."""
WAIT = 1e-6
"""Seconds until other units see what a unit has written: what a second task costs."""
GUESS = 64
"""What a size that only the run knows is taken for."""
