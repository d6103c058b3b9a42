"""Tests of `coordinator.member`."""
