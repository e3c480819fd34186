"""Parts of several dialects: reading of requests, and parts of answers. Imports no dialect."""
