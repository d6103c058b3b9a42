"""Mirrors deploy/gns3/alarms."""
