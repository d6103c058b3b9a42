"""Tests against real clusters: processes, sockets, disks, SIGKILL."""
