"""Format of a store on disk: shards in HydraGNN's layout and a manifest, opened safely."""
