"""Header fields of HTTP: conditions, ranges, digests, tus. Pure."""
