"""Mirrors deploy/gns3/local."""
