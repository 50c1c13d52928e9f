"""Problems that only benchmarks need."""
