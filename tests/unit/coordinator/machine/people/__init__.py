"""Tests of `coordinator.machine.people`."""
