"""Readers of a split: shared memory, random access, streams; and batches from whole arrays."""
