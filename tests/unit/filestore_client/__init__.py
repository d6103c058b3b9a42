"""Tests of `filestore_client`."""
