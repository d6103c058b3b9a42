"""Tests of `coordinator.console`."""
