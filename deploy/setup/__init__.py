"""What `filestore setup` does: a coordinator and a node on this machine, of a new or a running cluster."""
