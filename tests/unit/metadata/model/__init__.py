"""Tests of `metadata.model`."""
