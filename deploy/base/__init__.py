"""The common parts of all commands: connection to the cluster, options, addresses, the terminal."""
