"""What operators touch: the `filestore` command and the development cluster."""
