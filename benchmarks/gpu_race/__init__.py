"""Training steps on a device taken apart, estimates, sharing; ``gpu.py`` prints the tables."""
