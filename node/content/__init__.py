"""File content over HTTP.

Downloads, tus and plain uploads, and passing a request on to the node that holds it.
"""
