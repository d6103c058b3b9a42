"""Tests of `coordinator.machine`."""
