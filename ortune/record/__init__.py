"""The record: the JSON document that a search writes, and that everything else reads."""
