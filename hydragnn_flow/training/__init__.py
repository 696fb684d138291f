"""One training loop for one GCD or DDP; losses, checkpoints, segments.

Trials and members, whether they train alone, distributed or fused, are compared with each other and
may be killed at any moment. So they share one loop, one criterion and one checkpoint format. The
package itself imports nothing, for processes that do without torch.
"""
