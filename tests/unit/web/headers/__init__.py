"""Tests of `web.headers`."""
