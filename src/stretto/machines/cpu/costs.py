"""What an AVX-512 core can do, measured coarsely: the figures rank choices, they do not predict."""

from __future__ import annotations

FLOPS = 220e9
"""Sustained float32 operations per second of one core in a register-tiled contraction."""
BANDWIDTH = 90e9
"""Bytes per second that one core streams from its second-level cache (one row of a product)."""
ELEMENT = 0.12e-9
"""Seconds per element and function application of vectorised pointwise work."""
TASK = 2e-8
"""Seconds to start a task."""
PACKING = 8
"""Copying the patches of a convolution costs as much as computing this many of its channels."""
