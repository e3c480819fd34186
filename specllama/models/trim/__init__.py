"""Trimming drafts: which tokens are kept, and the file with them."""
