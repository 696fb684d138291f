"""Real trainings that were recorded once, and what a search is told instead of training again."""
