"""Tests of `node.diskio`."""
