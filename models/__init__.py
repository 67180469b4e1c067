"""Models for tests and benchmarks: a manifest, a builder, and a few tiny models that are committed."""
