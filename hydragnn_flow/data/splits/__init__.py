"""Division of structures into training, validation and test."""

TRAIN, VALIDATION, TEST = "trainset", "valset", "testset"
"""The names HydraGNN gives its splits."""
