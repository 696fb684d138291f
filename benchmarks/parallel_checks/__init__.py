"""Checks behind the table of one network over many GCDs; each module measures a row of it."""
