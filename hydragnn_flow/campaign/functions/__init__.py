"""Campaigns that search the arguments of any Python function instead of training networks."""
