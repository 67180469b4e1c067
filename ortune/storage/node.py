"""The name of this host among those that share a storage."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket

from ortune.replaceable import replaceable

NODE_VARIABLE = "ORTUNE_NODE"
"""Environment variable with the name. Without it, the name is that of the host. Containers have random ones."""

LONGEST_NODE = 128


def name_node() -> str:
    """Return the name of this host."""
    name = os.environ.get(NODE_VARIABLE, "").strip() or socket.gethostname()
    return "".join(character for character in name if character.isprintable())[:LONGEST_NODE] or "node"


@replaceable
def name_worker() -> str:
    """Return a new name for this process."""
    return secrets.token_hex(8)


def hash_node(node: str) -> str:
    """Return what stands for a host in records, which are often public: 8 hexadecimal digits."""
    return hashlib.sha256(f"ortune node {node}".encode(errors="surrogatepass")).hexdigest()[:8]
