"""Trying a site: one block is started, and every GCD says what it is."""
