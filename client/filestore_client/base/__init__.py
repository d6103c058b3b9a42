"""The basis of the client: requests with retries, their errors, and records."""
