"""Domain of an ensemble: ranges of its training data, and structures beyond them."""
