"""What can be said to the coordinators, and the client side of saying it."""
