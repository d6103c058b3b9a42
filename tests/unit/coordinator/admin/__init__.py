"""Tests of `coordinator.admin`."""
