"""The tools for operators: the `filestore` command and the development cluster."""
