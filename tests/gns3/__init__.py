"""Backups of real GNS3 servers: `make gns3`."""
