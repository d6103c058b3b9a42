"""Tests of `coordinator.reconcile`."""
