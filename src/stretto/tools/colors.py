"""Colours of kernels in timelines: the same in every format."""

from __future__ import annotations

from stretto.tools.profile import Profile

PALETTE = (
    "#4269d0",
    "#efb118",
    "#ff725c",
    "#3ca951",
    "#a463f2",
    "#6cc5b0",
    "#ff8ab7",
    "#9c6b4e",
    "#97bbf5",
    "#c2b280",
)
"""Told apart well, by people with weak colour vision too (Observable's categorical palette)."""

REST = "#9aa0a6"
"""Kernels beyond the palette; they are the ones with the least time."""


def kernel_colors(profile: Profile) -> list[str]:
    """A colour for each kernel: the palette's, in the order of the program, for those that take the
    most time."""
    by_time = sorted(range(len(profile.kernels)), key=lambda n: -profile.kernels[n].busy)
    colors = [REST] * len(profile.kernels)
    for kernel, color in zip(sorted(by_time[: len(PALETTE)]), PALETTE, strict=False):
        colors[kernel] = color
    return colors
