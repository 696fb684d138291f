"""Our search beside Optuna's and DeepHyper's: what it costs, and how good what it finds is."""
