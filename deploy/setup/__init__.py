"""`filestore setup`: create a coordinator and a node on this machine, for a new or a running cluster."""
