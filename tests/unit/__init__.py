"""Single parts of the product, in the folders of what they test, with real files and sockets."""
