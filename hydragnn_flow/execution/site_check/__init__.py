"""Site check: one block is started, and every GCD reports what it is."""
