"""Ways to read a split: shared memory, random access, streams; and batches from whole arrays."""
