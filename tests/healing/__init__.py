"""Random operations on a real cluster that heals itself: clients, nodes that come and go, bad disks."""
