"""Everything that a person reads: tables, progress and messages, all drawn with rich."""
