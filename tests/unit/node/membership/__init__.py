"""Tests of `node.membership`."""
