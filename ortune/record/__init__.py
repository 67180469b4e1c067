"""The record: the JSON document that a search writes and all other commands read."""
