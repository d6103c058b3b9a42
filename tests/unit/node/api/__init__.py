"""Tests of `node.api`."""
