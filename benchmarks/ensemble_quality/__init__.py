"""Judgement of the test predictions of an ensemble."""
