"""Tests of `node/cold`, and of cold replicas in a store."""
