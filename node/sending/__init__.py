"""Bytes on their way to a client: large writes, sendfile, splice, and clients that stop reading."""
