"""Tests of `node.staging`."""
