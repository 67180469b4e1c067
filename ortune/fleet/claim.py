"""What identifies the claim of a record, whatever evidence is added to it later."""

from __future__ import annotations

import hashlib

import msgspec

from ortune.record.schema import Record


def digest_claim(record: Record) -> str:
    """Return a SHA-256 of what a record claims: config, baseline, model, workload, class of host and version.

    What few records have is left out of the others, whose claims were shared before it was part of claims.
    """
    workload = record.workload
    claim = {
        "config": record.config.key,
        "base": record.base.key,
        "model": record.model.digest,
        "load": workload.load,
        "objectives": workload.objectives,
        "limits": workload.limits,
        "inputs": sorted((name, data.dtype, data.shapes) for name, data in workload.inputs.items()),
        "host": record.host.id,
        "onnxruntime": record.runtime.onnxruntime,
    }
    rare = {"background_load": workload.background_load, "program": workload.program, "batches": workload.batches}
    claim |= {name: value for name, value in rare.items() if value}
    return hashlib.sha256(msgspec.json.encode(claim, order="deterministic")).hexdigest()
