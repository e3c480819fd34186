"""The Hugging Face hub: names, downloads, the cache."""
