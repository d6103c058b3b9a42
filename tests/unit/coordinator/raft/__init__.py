"""Tests of `coordinator.raft`."""
