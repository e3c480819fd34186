"""Choosing a token from a row of logits: parameters, truncation, Gumbel noise, argmax."""
