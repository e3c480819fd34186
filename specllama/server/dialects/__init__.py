"""The APIs that the server offers, one package or module each: its requests, writer, routes, errors."""
