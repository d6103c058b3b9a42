"""Tests of `api.console`."""
