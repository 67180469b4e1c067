"""Tests with the systems that read exports, and with real programs under `ortune apply`.

Each test needs its own packages: see requirements.txt and fetch.py.
"""
