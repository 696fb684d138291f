"""How the test predictions of an ensemble are judged."""
