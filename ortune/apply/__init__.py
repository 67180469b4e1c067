"""Use of records: from Python, in unmodified programs, and checks of a record on this host."""
