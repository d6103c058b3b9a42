"""Header fields of HTTP: conditions, ranges, digests. Pure."""
