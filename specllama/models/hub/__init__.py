"""The Hugging Face hub: its API, downloads, the cache on disk."""
