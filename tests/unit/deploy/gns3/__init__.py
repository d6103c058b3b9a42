"""Tests of deploy/gns3 without a server."""
