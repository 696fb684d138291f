"""Predictions of an ensemble: input, predictions of all members, tables and files."""
