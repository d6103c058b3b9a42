"""The commands of `filestore gns3`."""
