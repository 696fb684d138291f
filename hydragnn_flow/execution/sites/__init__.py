"""What a machine offers: site files, the options of a run on it, its Parsl configuration."""
