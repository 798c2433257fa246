"""Control flow: branches, loops, values that are one of several."""
