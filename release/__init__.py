"""Build the files that an operator installs, from a checkout: the Debian package and the one-file command."""
