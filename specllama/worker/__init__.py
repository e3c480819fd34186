"""The engine process and the client that every front talks to."""
