"""Which structures train, validate and test."""

TRAIN, VALIDATION, TEST = "trainset", "valset", "testset"
"""The names HydraGNN gives its splits."""
