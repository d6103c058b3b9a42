"""The web console: a static client of the API, and how every process serves it at `/console/`.

The files for browsers are in `static/`. `docs/console.md` explains how to add a page.
"""
