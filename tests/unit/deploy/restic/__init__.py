"""Tests of `deploy.restic`."""
