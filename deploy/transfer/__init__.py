"""Files up and down by the command: what a run leaves for the next one to resume."""
