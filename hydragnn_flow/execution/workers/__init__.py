"""Processes of a node: tasks, the ranks of a segment, and the trainer processes that run them.

A process may crash or hang in a GPU driver. Training runs in trainer processes, so that the agent
survives and reports it, and each stays warm, since it takes seconds to import torch.
"""
