"""What the log says this node shall hold, held against its disk: orders, scrub, losses, deletion."""
