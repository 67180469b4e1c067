"""The documentation site: its configuration and its build."""
