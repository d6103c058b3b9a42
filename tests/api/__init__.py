"""The HTTP interface, over real sockets."""
