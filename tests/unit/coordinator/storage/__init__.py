"""Tests of `coordinator.storage`."""
