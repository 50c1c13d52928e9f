"""Evidence and predictions; nothing here knows of kernels or models."""
