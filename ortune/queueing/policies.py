"""The names of ways of grouping items of different lengths. Plans are read without NumPy, so this needs none."""

from __future__ import annotations

from typing import Literal

Policy = Literal["one at a time", "arrival", "sorted", "sorted by tokens", "sorted, best cuts", "buckets", "maximum"]
"""Ways of grouping. "one at a time": batches of one. "arrival": in order of arrival, padded to the longest item of the
batch. "sorted": the same in order of length. "sorted by tokens": in order of length, as many as fit into a number of
tokens (size x padded length). "sorted, best cuts": in order of length, cut where the predicted time is shortest.
"buckets": each length is padded to the next of some lengths, and batches are of one of these. "maximum": as "arrival",
but padded to a fixed length."""


def name_policy(policy: Policy, parameter: int | None) -> str:
    """Return a short description of a policy, such as `sorted by tokens, 512 tokens`."""
    unit = "tokens" if policy == "sorted by tokens" else "per batch"
    return policy if parameter is None else f"{policy}, {parameter} {unit}"
