"""Searches on a simulated clock; ``search_quality.py`` prints the tables."""
