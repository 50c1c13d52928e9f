"""The algebra of the exact models: independent blocks plus a low-rank part."""
