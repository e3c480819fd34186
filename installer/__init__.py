"""The parts of scripts/install.py."""
