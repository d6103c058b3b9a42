"""Tests of `deploy.people`."""
