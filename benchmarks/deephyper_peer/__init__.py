"""DeepHyper as a peer of our samplers: for an interpreter that has it, and nothing of ours."""
