"""Passes over Programs, one file each; `manager` runs them, `pipeline` has their order."""
