"""Cost of getting a segment to its first training step."""
