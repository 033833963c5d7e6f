"""Model files: readers that treat every byte as hostile, and the cache of downloaded models."""
