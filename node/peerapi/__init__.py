"""The interface for other nodes, on the peer port."""
