"""Sums over edges whose derivatives are written by hand, because torch's own are slower.

Every one is differentiated twice: forces are gradients, and training on them takes the gradient of
a gradient. One stays only while it saves a training step of some type a tenth of its time.
"""
