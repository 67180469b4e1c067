"""Puts a record to use: from Python, or in a program that knows nothing of it."""
