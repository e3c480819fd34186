"""What clients may send: bodies read within limits, checked, as plain data for the engine."""
