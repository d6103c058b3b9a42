"""Tests of `node.storage`."""
