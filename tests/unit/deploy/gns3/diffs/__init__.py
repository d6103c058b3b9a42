"""Mirrors deploy/gns3/folders."""
