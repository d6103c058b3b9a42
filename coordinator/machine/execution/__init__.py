"""The common parts of all commands and queries: the caller, the rules in force, replies, pages."""
