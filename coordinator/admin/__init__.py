"""What is done to a coordinator's directory by hand: set up, restore, examine; and the key of the cluster."""
