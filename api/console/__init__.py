"""The web console: a static client of the API, and how every process serves it at `/console/`.

What a browser gets lies in `static/`; `docs/console.md` says how a page is added.
"""
