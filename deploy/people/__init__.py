"""Commands about people: groups, invitations, and the import of a class."""
