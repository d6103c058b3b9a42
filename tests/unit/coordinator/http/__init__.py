"""Tests of `coordinator.http`."""
