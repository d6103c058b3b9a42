"""What every other room of a node may need: configuration, metrics, names, spans of bytes."""
