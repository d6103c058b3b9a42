"""Tests of `node.packs`."""
