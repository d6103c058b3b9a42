"""The long suite of whole machines, `make machines`: Debian with systemd, a network, and the package."""
