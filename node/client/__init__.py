"""A client of the HTTP API: uploads and downloads that resume, over several nodes."""
