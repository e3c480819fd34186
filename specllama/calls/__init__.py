"""Tool calls: the formats in which models write them; formats.py has the registry."""
