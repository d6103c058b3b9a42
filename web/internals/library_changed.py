"""The error for a library that works otherwise than it was tried with. Shared by both sides of HTTP.

It is raised where going on would spoil bytes.

Tested by tests/unit/web/test_internals.py.
"""

import logging

_log = logging.getLogger("filestore.http")


class LibraryChanged(RuntimeError):
    """A library works otherwise than this product was tried with; the connection cannot be used any more."""


def library_changed(what: str) -> LibraryChanged:
    """The error to raise. It is logged here: a library may take it for a broken connection."""
    _log.error("a library does not behave as expected", extra={"problem": what})
    return LibraryChanged(what)
