"""Tests of `coordinator.protocol`."""
