"""Tests of `ca`."""
