"""Policies: what to draft in each round, by measured costs and learnt acceptance."""
