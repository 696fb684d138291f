"""Profiles of training steps: where their time goes, and how fast they are once they run steadily.

They use the trainer as it is, so that what is measured is what trains.
"""
