"""Tests of `node.client`."""
