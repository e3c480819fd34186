"""Campaigns of random, mostly wrong inputs against everything that reads what others have written."""
