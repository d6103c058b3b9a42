"""Clients that others wrote, interrupted in the middle (`make clients`)."""
