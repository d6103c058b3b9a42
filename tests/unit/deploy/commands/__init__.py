"""Tests of `deploy.commands`."""
