"""Tests of `node.peer`."""
