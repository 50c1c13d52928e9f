"""Linear algebra of covariances with independent blocks plus a low-rank part."""
