"""The APIs that the server speaks: one package or module each: its requests, writer, routes, errors."""
