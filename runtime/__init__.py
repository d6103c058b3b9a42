"""The basis of every process of both roles: configuration, start and end, logs, metrics, wording."""
