"""PaiNN and MACE of the package beside those of schnetpack and mace-torch.

``peers_accuracy.py`` prints the table.
"""
