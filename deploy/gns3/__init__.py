"""Projects and images of GNS3 servers, kept in a store and brought back: `filestore gns3`."""
