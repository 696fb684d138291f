"""Training of networks by one loop, on one GCD or on many, with losses and checkpoints.

A segment is one stretch of a trial's or member's training, sent as one job.

Trials and members, whether they train alone or distributed, are compared with each other and may be
killed at any moment. So they share one loop, one criterion and one checkpoint format. The package
itself imports nothing, for processes that do without torch.
"""
