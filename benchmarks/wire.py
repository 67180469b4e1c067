"""Reads on the loopback interface when requests reach a server of this host, and when its responses leave it.

The kernel stamps each packet. That needs no code in the server or the client, and no more of their CPU time than a
copy: stamps wait in a buffer until they are read. It needs Linux, and root (packet(7), socket(7)).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ortune.program.http_worker import SO_TIMESTAMPNS, STAMP

ETH_P_IP = 0x0800
SO_RCVBUFFORCE = 33
SOL_PACKET = 263
PACKET_STATISTICS = 6

BUFFER_BYTES = 256 << 20

HEADER_BYTES = 128
"""Bytes that are read of each packet: more than the headers of IP and TCP have."""


class Wire:
    """The packets from and to one TCP port of this host, from now on.

    Args:
        port: The port of the server.

    Raises:
        OSError: Packets cannot be read.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        try:
            self._socket.bind(("lo", ETH_P_IP))
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read_spans(self) -> NDArray[np.int64]:
        """Return the requests since the last call, in the order of their arrival.

        A request begins with the first data that a client sends after a response, and ends with the last data of its
        response. Connections without a complete request are left out.

        Returns:
            Start and end of each request, on the clock of `time.perf_counter_ns`: shape (n, 2).

        Raises:
            OSError: Packets were lost.
        """
        offset_ns = time.perf_counter_ns() - time.time_ns()
        requests: dict[int, list[list[int]]] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, extra, _, _ = self._socket.recvmsg(HEADER_BYTES, socket.CMSG_SPACE(STAMP.size))
                is_sent, client, at_ns = self._parse(packet, extra)
                if client < 0:
                    continue
                some = requests.setdefault(client, [])
                if not is_sent:
                    if not some or some[-1][1]:
                        some.append([at_ns, 0])
                elif some:
                    some[-1][1] = at_ns
        # The kernel counts the packets that it had no room for since the last look.
        _, n_lost = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        if n_lost:
            raise OSError(f"{n_lost} packets were lost")
        spans = [span for some in requests.values() for span in some if span[1]]
        return np.array(sorted(spans), dtype=np.int64).reshape(-1, 2) + offset_ns

    def _parse(self, packet: bytes, extra: list[tuple[int, int, bytes]]) -> tuple[bool, int, int]:
        """Return whether a packet is from the server, the client's port, and its time; the port is -1 without data."""
        n_ip = 4 * (packet[0] & 15)
        source, target = struct.unpack_from("!HH", packet, n_ip)
        (n_bytes,) = struct.unpack_from("!H", packet, 2)
        has_data = n_bytes > n_ip + 4 * (packet[n_ip + 12] >> 4)
        if packet[9] != socket.IPPROTO_TCP or not has_data or self._port not in {source, target}:
            return False, -1, 0
        seconds, nanoseconds = STAMP.unpack(extra[0][2])
        is_sent = source == self._port
        return is_sent, target if is_sent else source, seconds * 10**9 + nanoseconds


def open_wire(port: int) -> Wire | None:
    """Return the packets of a port from now on; None if they cannot be read here."""
    try:
        return Wire(port)
    except (OSError, AttributeError):
        return None
