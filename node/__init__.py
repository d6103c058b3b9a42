"""A node: blob replicas, uploads, downloads, the HTTP interface for content."""
