"""Measurements of the engine by the clock."""
