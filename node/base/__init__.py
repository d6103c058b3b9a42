"""What other rooms of a node may need: configuration, metrics, names, cached file records, spans of bytes."""
