"""A random search for labs that a backup loses, replaces, or calls whole when they are not."""
