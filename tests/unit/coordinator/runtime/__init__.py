"""Tests of `coordinator.runtime`."""
