"""Policies: what to draft in each round, by measured cost and learnt acceptance."""
