"""The entry point of a child process, started as `python boot.py CHANNEL`.

The import path comes as the first frame of the channel. In the command line it would be visible to all users and
limited in length.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    length = int.from_bytes(_receive(channel, 4), "big")
    boot = json.loads(_receive(channel, length))
    # The same as in the node, so that the module finds the same files.
    sys.path[:] = boot["path"]
    sys.argv[:] = boot["argv"]

    from evertick.driver.python.child import serve

    serve(channel, boot["child_call"])


def _receive(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = channel.recv(count - len(data))
        if not chunk:
            os._exit(0)  # the node has died before a call began
        data += chunk
    return data


if __name__ == "__main__":
    main()
