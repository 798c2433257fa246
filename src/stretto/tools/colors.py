"""Colours of kernels in timelines: the same in every format."""

from __future__ import annotations

from stretto.tools.profile import Profile

FEW = (
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

MANY = (
    *("#aec7e8", "#1f77b4", "#ffbb78", "#ff7f0e", "#98df8a", "#2ca02c", "#ff9896", "#d62728"),
    *("#c5b0d5", "#9467bd", "#c49c94", "#8c564b", "#f7b6d2", "#e377c2", "#f2d98c", "#d4a017"),
    *("#dbdb8d", "#8f9a1b", "#9edae5", "#17a2b8"),
)
"""Ten hues, each light and dark: neighbours in a program, such as the two kernels of a layer, look
akin (after Tableau's palette of 20)."""

REST = "#9aa0a6"
"""Kernels beyond the palette; they are the ones with the least time."""


def kernel_colors(profile: Profile) -> list[str]:
    """A colour for each kernel: the palette's, in the order of the program, for those that take the
    most time."""
    ran = [number for number, kernel in enumerate(profile.kernels) if kernel.tasks]
    palette = FEW if len(ran) <= len(FEW) else MANY
    by_time = sorted(ran, key=lambda number: -profile.kernels[number].busy)
    colors = [REST] * len(profile.kernels)
    for number, color in zip(sorted(by_time[: len(palette)]), palette, strict=False):
        colors[number] = color
    return colors
