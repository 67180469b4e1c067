"""Archives of input data."""

from __future__ import annotations

import functools
import io
import warnings
import zipfile
from random import Random

from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.options import make_small_feed
from tests.fuzz.target import Target, attempt, write_input


@functools.cache
def npz_seeds() -> tuple[bytes, ...]:
    import numpy as np

    found = []
    for save in (np.savez, np.savez_compressed):
        for arrays in (
            {"image": np.ones((1, 3, 4, 4), np.float32), "ids": np.arange(5).reshape(1, 5)},
            {"ids": np.arange(12).reshape(3, 2, 2), "position": np.zeros((3, 2), np.int32)},
            {
                "s": np.array(["x", "yz"]),
                "position": np.zeros(2, "<i2"),
                "image": np.ones((2, 3, 1, 1), ">f8", order="F"),
            },
            {"image": np.zeros((0, 3, 1, 1)), "ids": np.array([[True]]), "s": np.array([b"x"])},
        ):
            stream = io.BytesIO()
            save(stream, **arrays)
            found.append(stream.getvalue())
    return tuple(found)


NPY_WORDS = tuple(
    text.encode()
    for text in (
        "'<f4'",
        "'|O'",
        "'<U1000000000'",
        "'|V8'",
        "'<M8[s]'",
        "[('a', '<f4')]",
        "'|S0'",
        "'<c16'",
        "'>i8'",
        "'|b1'",
        "(1, 3, 4, 4)",
        "(-1,)",
        "(999999999999,)",
        "(1,)*9",
        "(3L,)",
        "()",
        "(0, 9223372036854775807)",
        "(1" + ", 1" * 70,
        "'descr'",
        "'fortran_order'",
        "'shape'",
        "True",
        "\x93NUMPY\x01\x00",
        "\x93NUMPY\x02\x00",
        "(" * 500,
        "-" * 500,
    )
)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
ZIP_WORDS = (
    b"PK\x03\x04",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"PK\x06\x07",
    b"\xff\xff\xff\xff",
    b"\x00" * 8,
)


def mutate_npz(data: bytes, random: Random) -> bytes:
    """Change bytes of an archive, or the arrays in it."""
    if random.random() < 0.35:
        return mutate_bytes(data, random, ZIP_WORDS, npz_seeds())
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:  # noqa: BLE001  (the input may be a broken archive)
        return mutate_bytes(data, random, ZIP_WORDS)
    at = int(random.random() * len(members)) if members else 0
    kind = random.random()
    if not members or kind < 0.1:
        name = random.choice(
            ("x.npy", "ids.npy", "ids", "../x.npy", "a/", "", "\udcff", "s.npy", "image.npy", "n" * 300)
        )
        members.append((name.encode("utf-8", "replace").decode(), random.choice(members)[1] if members else b""))
    elif kind < 0.11:
        members[at] = (members[at][0], make_npy(random))
    elif kind < 0.6:
        content = members[at][1]
        head = mutate_bytes(content[:128], random, NPY_WORDS)
        members[at] = (members[at][0], fix_header(head, random) + content[128:])
    else:
        members[at] = (members[at][0], mutate_bytes(members[at][1], random, NPY_WORDS))
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", compresslevel=1) as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(
                name.replace("\0", "") or "x", content, random.choice(METHODS[: 3 + 2 * (random.random() < 0.05)])
            )
    found = stream.getvalue()
    return mutate_bytes(found, random, ZIP_WORDS) if random.random() < 0.1 else found


def fix_header(head: bytes, random: Random) -> bytes:
    """Return the head of an array whose length field is right, in most cases."""
    if random.random() < 0.2 or len(head) < 10:
        return head
    return head[:8] + (len(head) - 10).to_bytes(2, "little") + head[10:]


def make_npy(random: Random) -> bytes:
    """Return a large array that compresses well."""
    shape, dtype = random.choice(
        (
            ((2_000_000,), "|u1"),
            ((1, 3, 600, 600), "<f4"),
            ((300_000, 1), "<i8"),
            ((1, 999), "<U999"),
            ((5, 0, 10**9), "<f8"),
        )
    )
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = 8 if dtype[1] != "U" else 4
    n_items = functools.reduce(lambda one, other: one * other, shape)
    item = int(dtype[2:]) * (4 if dtype[1] == "U" else 1)
    assert size
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(n_items * item)


def run_npz(data: bytes) -> None:
    """Make the inputs of a small model from an archive."""
    from ortune.workload import InputOptions

    attempt(make_small_feed, InputOptions(data=str(write_input("d.npz", data)), dims={"n": (2,), "width": (8,)}))


NPZ = Target(run_npz, npz_seeds, mutate_npz)
