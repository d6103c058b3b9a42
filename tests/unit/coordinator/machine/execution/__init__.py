"""Tests of `coordinator.machine.execution`."""
