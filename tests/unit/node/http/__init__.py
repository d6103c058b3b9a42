"""Tests of `node.http`."""
