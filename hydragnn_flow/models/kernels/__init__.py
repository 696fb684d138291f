"""Sums over edges with hand-written derivatives, because torch's own are slower.

Each sum can be differentiated twice: forces are gradients, and training on them takes the gradient
of a gradient. A kernel stays only while it saves a tenth of the training step of some
message-passing type.
"""
