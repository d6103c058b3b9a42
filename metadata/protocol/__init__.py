"""All that can be said to the group of coordinators: commands, queries, calls."""
