"""Tests of `deploy.transfer`."""
