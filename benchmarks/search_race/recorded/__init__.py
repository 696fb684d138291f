"""Recorded trainings, and the answers that a search gets from them instead of training again."""
