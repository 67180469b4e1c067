"""Measuring and tuning whole programs: their process trees, their sessions, and what is measured of them."""
