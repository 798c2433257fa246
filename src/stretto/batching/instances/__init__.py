"""Instances of a batch as data: the types that are known of them, and how they are found."""
