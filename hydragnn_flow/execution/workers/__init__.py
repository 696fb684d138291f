"""Processes of a node: the agent's tasks, ranks of jobs, and trainer processes that run them.

A process may crash or hang in a GPU driver. Training therefore runs in trainer processes, so that
the agent survives and reports the failure. A trainer process stays alive between jobs, since
importing torch takes seconds.
"""
