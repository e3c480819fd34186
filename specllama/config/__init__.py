"""Settings: from flags, environment and files to what the engine loads; stored data."""
