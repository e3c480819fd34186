"""Tool calls: one file for each format in which models write them; formats.py has the registry."""
