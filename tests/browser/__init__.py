"""What people see: pages and links of a cluster in a real browser."""
