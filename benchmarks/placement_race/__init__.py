"""Quality of placement: campaigns that are simulated, and plans beside what ran."""
