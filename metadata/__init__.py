"""The messages to the coordinators, and the client that sends them."""
