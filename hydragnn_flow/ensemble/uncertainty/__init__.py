"""Error bars: the spread between members, calibrated on structures that no member has seen."""
