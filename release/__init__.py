"""What an operator installs, made from a checkout: the Debian package and the one-file command."""
