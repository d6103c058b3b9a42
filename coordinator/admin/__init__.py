"""Manual operations on a coordinator's directory: set up, restore, examine; and the key of the cluster."""
