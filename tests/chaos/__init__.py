"""Chaos: real coordinators and nodes on broken networks, clocks and disks, while clients write and read."""
