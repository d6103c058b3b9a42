"""Signing in, at the coordinator that leads."""
