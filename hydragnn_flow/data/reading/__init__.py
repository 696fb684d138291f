"""Readers of a split, from shared memory, at random from disk, or as a stream; and batches."""
