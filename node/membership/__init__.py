"""A node among others: joining, renewing, moving, and telling how its disk is."""
