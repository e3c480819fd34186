"""Prefix states: evaluated text that later requests continue, kept in one store (`store.PrefixStore`).

A prefix is the attention cells of a text and, for models whose cache cannot be cut anywhere (recurrent and
hybrid models, sliding windows), a partial state at its end. Knows contexts by their interface; no files, no
threads; clocks are passed in.
"""
