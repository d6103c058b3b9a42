"""The metadata half of the HTTP interface, one file per resource; nodes and coordinators serve the same."""
