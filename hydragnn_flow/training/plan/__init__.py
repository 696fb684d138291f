"""Plan of a training: which graphs each step has, and on which rank.

It is made from the sizes of graphs alone, before any of them is read, so that it can be the same on
every number of GCDs and can be continued in the middle of an epoch.
"""
