"""The groups of the `filestore` command, one file each.

They parse, call, print; the work is done elsewhere.
"""
