"""The engine process. Nobody imports it: it is started as `python -m specllama.worker.main`."""
