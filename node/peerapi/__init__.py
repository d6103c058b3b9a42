"""What other nodes ask of this one, on the peer port."""
