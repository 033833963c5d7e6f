"""Models that see: towers, and what becomes of an image before its rows stand in a prompt."""
