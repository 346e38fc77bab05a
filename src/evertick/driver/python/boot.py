"""The first lines that a child runs. A program of its own: `python boot.py CHANNEL`.

The import path of the child comes through its channel, as the first frame: it is not in the list of processes, and no
limit on command lines holds.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    length = int.from_bytes(_exactly(channel, 4), "big")
    order = json.loads(_exactly(channel, length))
    # As the node has them: the module must find what it finds there.
    sys.path[:] = order["path"]
    sys.argv[:] = order["argv"]

    from evertick.driver.python.child import serve

    serve(channel, order["child_call"])


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = channel.recv(count - len(data))
        if not more:
            os._exit(0)  # the node is gone, and nothing has begun
        data += more
    return data


if __name__ == "__main__":
    main()
