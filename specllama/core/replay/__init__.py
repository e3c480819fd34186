"""Replaying recorded texts in simulated time."""
