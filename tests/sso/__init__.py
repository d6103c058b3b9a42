"""Signing in with a real provider: the long suite of `make sso`."""
