"""Checkpoints: written whole or not at all, verified when read, and chosen among attempts.

A segment (one stretch of a training, sent as one job) may be sent several times, as nodes are lost
and may come back. Each sending is an attempt and writes files of its own, so that none spoils the
work of another.
"""
