"""Signing in with identity providers (OpenID Connect): the part of the leader, which alone talks to them."""
