"""The records of a storage."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.errors import RecordError
from ortune.fleet.proofs import SharedClaim, Unread, read_claims
from ortune.record.select import Sourced
from ortune.storage import Location


def read_shared_records(location: Location) -> tuple[Sourced, ...]:
    """Return the records of a storage, with the evidence of the hosts.

    Raises:
        RecordError: It holds none that can be used.
        StorageError: It does not answer.
    """
    claims, unread = read_claims(location)
    return list_sourced(location, claims, unread)


def list_sourced(location: Location, claims: Sequence[SharedClaim], unread: Sequence[Unread]) -> tuple[Sourced, ...]:
    """Return the records of claims.

    Raises:
        RecordError: There are none.
    """
    if not claims:
        hint = "Verify a record: ortune apply tuned.json --verify --storage URL."
        if unread:
            raise RecordError(f"{location.title} holds no record that can be used: {unread[0].reason}", hint)
        raise RecordError(f"{location.title} holds no records.", hint)
    return tuple(Sourced(record=claim.record, source=f"{location.title}, {claim.study.name}") for claim in claims)
