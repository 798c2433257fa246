"""The interpreter of Programs, on plain torch calls: the reference of the tests."""
