"""Tests of `runtime`."""
