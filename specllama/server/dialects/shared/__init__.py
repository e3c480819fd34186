"""What several dialects use: reading of requests, and parts of answers. Imports no dialect."""
