"""Tests of `node.base`."""
