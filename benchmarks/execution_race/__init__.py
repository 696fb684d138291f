"""What it costs to get a segment to its first training step."""
