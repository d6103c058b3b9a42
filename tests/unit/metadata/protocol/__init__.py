"""Tests of `metadata.protocol`."""
