"""What the cluster knows and how it is measured: records, bounds, clocks, placement. Pure."""
