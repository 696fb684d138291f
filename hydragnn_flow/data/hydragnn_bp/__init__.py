"""HydraGNN's own `.bp` files: they have no checksums, so another process reads them first."""
