"""Passes over Programs, one file each; `manager` runs them, `build.pipeline` has their order."""
