"""Small blobs, many to a file: packs, their index, and how dead space is freed."""
