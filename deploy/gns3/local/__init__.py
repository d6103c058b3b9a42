"""Projects of a GNS3 server on its own machine: whole folders into the store, and back in their place."""
