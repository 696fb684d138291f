"""Estimates of the time and memory of segments, and the measured costs that correct them."""
