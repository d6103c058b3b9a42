"""Tests of web.internals."""
