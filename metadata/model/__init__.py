"""The data model of the cluster: records, bounds, clocks, placement. Pure."""
