"""A folder as one archive and back: entries, tar, copies that stand still. Knows no GNS3 and no store."""
