"""Sites: site files, the options of a run on a machine, its Parsl configuration."""
