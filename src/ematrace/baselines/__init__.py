"""Baselines: a supervised BiGRU tagger, one-hot features, and language models without context."""
