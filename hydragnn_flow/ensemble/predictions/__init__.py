"""Members over structures: input, one iterator, tables, and files of predictions."""
