"""Chaos: real coordinator processes on broken networks, clocks and disks, while clients write and read."""
