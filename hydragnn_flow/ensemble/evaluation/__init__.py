"""Errors of predictions and of their error bars on labelled structures."""
