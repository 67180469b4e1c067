"""Programs that people might write, with packages from PyPI. They are run unmodified; see `benchmarks.programs`."""
