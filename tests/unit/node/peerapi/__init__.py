"""Tests of `node.peerapi`."""
