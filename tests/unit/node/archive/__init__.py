"""Tests of `node.archive`."""
