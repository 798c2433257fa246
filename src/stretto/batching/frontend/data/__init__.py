"""The data of instances: attributes, items, objects, numbers and truth."""
