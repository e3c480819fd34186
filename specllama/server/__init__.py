"""The local API: one engine process behind HTTP, in the dialects that clients speak."""
