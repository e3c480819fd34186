"""Settings from flags, environment variables and files; the store for measurements."""
