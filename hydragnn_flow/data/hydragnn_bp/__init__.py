"""HydraGNN's own `.bp` files, which have no checksums and are tried in another process first."""
