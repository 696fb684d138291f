"""Measures of predictions: the loss that is minimised, and the errors that are reported."""
