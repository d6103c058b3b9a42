"""Keep this node's disk in agreement with the log: orders, scrub, losses, deletion."""
