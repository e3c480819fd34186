"""The engine process, started as `python -m specllama.worker.main`. No other package imports it."""
