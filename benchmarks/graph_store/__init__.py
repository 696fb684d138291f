"""The rows of the table that ``store.py`` prints, and what measuring them takes."""
