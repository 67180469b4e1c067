"""What all that share a study have in common, and the name of the study, which follows from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from ortune.storage.schema import FORMAT

PREFIX = f"ortune{FORMAT}"

LONGEST_NAME = 64


class StudyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A study of a storage.

    Attributes:
        name: Its name.
        identity: What all its measurements have in common, as text by name: model, class of host, load, and others.
    """

    name: str
    identity: dict[str, str]


def name_study(identity: Mapping[str, str]) -> str:
    """Return the name of the study of all searches with the same identity."""
    digest = hashlib.sha256(msgspec.json.encode(dict(identity), order="deterministic")).hexdigest()[:24]
    readable = re.sub(r"[^\w.-]+", "-", identity.get("model_name", ""), flags=re.ASCII)[:LONGEST_NAME].strip("-")
    return f"{PREFIX}/{readable or 'model'}/{digest}"
