"""One training loop for one GCD or DDP; losses, checkpoints, segments.

This package imports nothing by itself: `segment` is read by processes that never need torch.
"""
