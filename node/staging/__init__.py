"""Unfinished content on this disk: the files of uploads, and the hash of what has come."""
