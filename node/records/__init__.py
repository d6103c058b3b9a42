"""The cache of file records of a node, which holds none that is untrue."""
