"""Makes the tests a package, so that no installed package called `tests` is imported instead."""
