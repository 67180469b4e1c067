"""Fuzz targets: functions that take bytes of unknown origin and must end with a result or an `OrtuneError`.

`tests/test_fuzz.py` runs them with few examples and with the findings in `corpus/`. `python -m tests.fuzz.run` runs
them any number of times.
"""
