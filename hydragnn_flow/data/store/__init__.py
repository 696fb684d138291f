"""The format on disk: shards in HydraGNN's layout, a manifest, and opening them safely."""
