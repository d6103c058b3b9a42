"""Finished content on this disk: blobs, the checksums of their segments, what is damaged, partial or lost."""
