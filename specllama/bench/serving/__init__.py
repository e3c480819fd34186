"""Measuring a server over HTTP, whoever's it is, under many requests at once; nothing here prints."""
