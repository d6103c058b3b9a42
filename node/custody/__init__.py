"""What the log says this node shall have, compared with its disk: orders, scrub, losses, deletion."""
