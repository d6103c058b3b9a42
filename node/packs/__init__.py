"""Small blobs, many to a file: packs, their index, and how dead room is taken back."""
