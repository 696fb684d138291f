"""Training steps of our networks and HydraGNN's, taken in turns; ``models.py`` prints the table."""
