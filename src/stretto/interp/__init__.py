"""The interpreter of Programs, on plain torch calls: the oracle of the tests."""
