"""Files that HydraGNN wrote: they carry no checksums, and are looked through before use."""
