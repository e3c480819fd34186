"""Whether a target and a draft model share a vocabulary."""
