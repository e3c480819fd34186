"""The APIs that the server offers: a package or module each, with its requests, writer, routes and errors.

What several of them use is in shared/; no dialect imports another.
"""
