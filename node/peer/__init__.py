"""Calls to other nodes: requests, replicas that are fetched, segments that are salvaged."""
