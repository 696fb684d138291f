"""Work of a finished or prepared run on the GCDs of a site: predictions, profiles, selections."""
