"""Tests of `node.workers`."""
