"""Measurements of the engine in real time."""
