"""Networks trained on public data at equal CPU time; ``accuracy.py`` prints the table."""
