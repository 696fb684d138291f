"""Processes of a node: tasks, the ranks of a segment, and the trainer processes that run them."""
