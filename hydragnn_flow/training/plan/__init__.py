"""Plan of a training: which graphs each step has, and on which rank (process of a job).

The plan is made from the sizes of graphs alone, before any graph is read. So the plan can be the
same on every number of GCDs, and can be continued in the middle of an epoch.
"""
