"""HTTP for both roles: listeners, TLS, bounds of requests, bodies, errors as answers."""
