"""Tests of `node.content`."""
