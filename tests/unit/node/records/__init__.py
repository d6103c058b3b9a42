"""Tests of `node.records`."""
