"""Tests of `coordinator.rpc`."""
