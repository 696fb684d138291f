"""Preparation of a campaign: everything that is checked or made before the first trial runs.

Errors are found here, in seconds and before a batch job is requested.
"""
