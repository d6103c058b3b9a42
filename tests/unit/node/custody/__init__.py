"""Tests of `node.custody`."""
