"""Faults made on purpose, and what came of each: `scripts/faults.py` runs them."""
