"""HydraGNN's own `.bp` files: without checksums, so read in another process first."""
