"""Processes of a node: tasks, the ranks of a segment, and the lanes that train them."""
