"""Construction of networks from a checked configuration and the statistics of a store."""
