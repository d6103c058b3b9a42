"""A node among others: joining, renewing, moving, and reporting the state of its disk."""
