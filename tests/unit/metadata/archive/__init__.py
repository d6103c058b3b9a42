"""Tests of `metadata.archive`."""
