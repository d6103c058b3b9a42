"""Tests of `deploy.base`."""
