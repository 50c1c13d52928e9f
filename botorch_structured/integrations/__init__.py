"""Front doors of other libraries, each imported on its own."""
