"""A soak test of `specllama serve`, which `python -m scripts.soak` and tests/faults/test_soak.py run."""
