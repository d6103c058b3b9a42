"""Tests of `coordinator.model`."""
