"""One writer per API over the one stream of events."""
