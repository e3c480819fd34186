"""The command line: one file per command; console.py is the only place that prints."""
