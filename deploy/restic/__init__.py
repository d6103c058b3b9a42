"""The REST protocol of restic, backed by a bucket: `filestore serve restic`."""
