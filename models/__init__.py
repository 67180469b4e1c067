"""Models for tests and benchmarks: a manifest, a builder, and two tiny models."""
