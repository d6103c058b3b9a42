"""The basis of the other rooms of a node: configuration, metrics, names, cached records, byte spans."""
