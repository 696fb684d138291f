"""Site check: starts one block, and lets every GCD describe itself."""
