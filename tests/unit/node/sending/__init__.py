"""Tests of `node.sending`."""
