"""Long suite: a real Prometheus and its tool; see `make prometheus`."""
