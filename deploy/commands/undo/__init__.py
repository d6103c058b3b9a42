"""The commands that undo mistakes, and those that prevent them."""
