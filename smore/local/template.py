"""
``python -m smore.local.template MODULE…``: the template, from which the supervisor of an embedded platform starts its
Python processes.

It imports the modules once, in this order, and becomes each process by a fork, so that a process starts in milliseconds
and shares what was imported with the others. After each module it forks what waits for it, and then imports the next.
``daemon.py`` is at the other end of its standard input, and starts a process by exec where there is no template. What must
stay true: one thread, no settings and no secret, for every process has a copy of its memory. So the process itself reads
its environment, after the fork.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from typing import Any

#: What asks for a process, and what lets it import the next module.
FORK, GO_ON = b"fork", b"go on"


def main(modules: Sequence[str]) -> None:
    link = socket.socket(fileno=0)
    # Nothing that is imported is garbage.
    gc.disable()
    for name in modules:
        # What else the module's process needs, beside what its import brings.
        getattr(importlib.import_module(name), "load", lambda: None)()
        if len(os.listdir("/proc/self/task")) > 1:
            sys.exit("the template has more than one thread, so that nothing can be forked from it")
        gc.freeze()
        link.sendall(name.encode())
        if (request := _serve(link)) is not None:
            link.close()
            gc.enable()
            _become(request)
            return


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request. Returns in each of them what it is to become; None: go on."""
    while True:
        asked, descriptors, _, _ = socket.recv_fds(link, max(len(FORK), len(GO_ON)), 2)
        if not asked:
            os._exit(0)  # the supervisor has ended
        if asked == GO_ON:
            return None
        child = os.fork()
        if child == 0:
            # Forked twice, the process is a child of the supervisor, which is its nearest subreaper.
            if os.fork() > 0:
                os._exit(0)
            return _ask(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(child, 0)


def _ask(connection: int, output: int) -> dict[str, Any]:
    """Tell the supervisor the pid, and learn what to become. The process ends where the supervisor does not answer."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    with socket.socket(fileno=connection) as supervisor, supervisor.makefile("rb") as answer:
        try:
            supervisor.sendall(str(os.getpid()).encode())
            request: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError):
            os._exit(1)
    return request


def _become(request: dict[str, Any]) -> None:
    """Be the process ``python -m MODULE …`` of the request: its group, folder, environment, command line and module."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing:
        os.dup2(nothing, 0)
        os.close(nothing)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words = request["command"]
    _show(words)
    sys.argv[1:] = words[3:]
    # It runs as __main__, as an exec'd one does.
    del sys.modules[words[2]]
    runpy.run_module(words[2], run_name="__main__", alter_sys=True)


def _show(words: Sequence[str]) -> None:
    """Let ``ps`` and /proc show this command line in place of the template's; empty words follow, up to its length."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


if __name__ == "__main__":
    main(sys.argv[1:])
