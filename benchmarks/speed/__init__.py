"""Speed, always as a ratio against a named peer in the same run."""
