"""What runs on a node: tasks, the ranks of a segment, and the processes that train them."""
