"""The web console's libraries, which are committed: which versions they are, and how they are fetched."""
