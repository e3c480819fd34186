"""Measuring plain against speculative decoding on this machine with this pair; nothing here prints."""
