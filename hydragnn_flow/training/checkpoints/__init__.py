"""Checkpoints: written whole or not at all, verified when read, and chosen among attempts.

A segment may be sent several times, to nodes that are lost and come back. Each attempt writes files
of its own, so that none spoils the work of another.
"""
