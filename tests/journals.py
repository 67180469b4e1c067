"""Reads journals of searches from bytes."""

from __future__ import annotations

import io

from ortune.record.journal import Content, Event, read_events, scan_journal


def scan(data: bytes) -> Content:
    return scan_journal(io.BytesIO(data))


def list_events(data: bytes) -> tuple[Event, ...]:
    return tuple(read_events(io.BytesIO(data), scan(data)))
