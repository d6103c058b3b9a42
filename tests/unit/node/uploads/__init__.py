"""Tests of `node.uploads`."""
