"""Networks and graphs on which training steps are timed, by `models.py` and `gpu.py`."""
