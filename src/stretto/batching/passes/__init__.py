"""Passes on InstancePrograms: they form the blocks that a batch records, and order them."""
