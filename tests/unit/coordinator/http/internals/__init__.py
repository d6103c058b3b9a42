"""Tests of coordinator.http.internals."""
