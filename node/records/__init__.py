"""Records of files that are kept by a node, and true."""
