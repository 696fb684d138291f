"""Site check: starts one block, and lets every GCD describe itself.

A wrong binding or a slow network would otherwise be noticed only by a campaign, after its wait.
"""
