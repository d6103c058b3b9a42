"""A node's disk: the threads that wait for it, names, syncs, the page cache, what cannot be used."""
