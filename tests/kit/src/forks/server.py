"""Starts Python programs that have PyTorch already: server.py ADDRESS

A start of PyTorch takes seconds of a core, and tests start hundreds. This process loads it once. `python` beside this
file sends arguments, environment, folder and standard streams. A fork of this process then runs the program, so that
each still has a process of its own. Ends when standard input ends, thus with the test.
"""

import array
import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import sys
import types
import warnings


def load():
    """Loads PyTorch and what exports load on their first call, by an export."""
    import torch

    layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)]
    batch = {0: torch.export.Dim.DYNAMIC}
    # Without this, warnings of this export would be missing in the programs: Python shows each once.
    with warnings.catch_warnings(record=True):
        program = torch.export.export(
            torch.nn.Sequential(*layers), (torch.zeros(4, 4),), dynamic_shapes=(batch,), strict=False
        )
        program.run_decompositions({})
    # A collection in a program would write to all objects, thus copy their memory.
    gc.collect()
    gc.freeze()


def receive(connection):
    """Returns the request of a client, and its streams."""
    size = array.array("i").itemsize
    head, extra, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * size))
    streams = array.array("i")
    for _, _, data in extra:
        streams.frombytes(data[: len(data) - len(data) % size])
    left, parts = int.from_bytes(head, "little"), []
    while left:
        part = connection.recv(left)
        if not part:
            os._exit(1)
        parts.append(part)
        left -= len(part)
    return json.loads(b"".join(parts)), streams


def serve(connection):
    """Returns the request in the program's process. In the process above it, tells the client how the program ended."""
    request, streams = receive(connection)
    program = os.fork()
    if program == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.setpgid(0, 0)
        return request
    for stream in streams:
        os.close(stream)
    ends = os.pidfd_open(program)
    ready, _, _ = select.select([ends, connection], [], [])
    if ends not in ready:
        # The client was killed.
        os.killpg(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    try:
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
    except OSError:
        pass
    os._exit(0)


def accept(address):
    """Returns a request, each time in a new process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + address)
    listener.listen(64)
    # Nobody waits for the processes that serve.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return serve(connection)
        connection.close()


def become(request):
    """Makes this process what `python ARGUMENTS` is, and returns the code of its main module."""
    os.chdir(request["folder"])
    packages = os.environ["PYTHONPATH"]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ.setdefault("PYTHONPATH", packages)
    # Each process has its own random numbers, as after a start.
    random.seed()
    sys.modules["torch"].seed()
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    first, *rest = request["arguments"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        return compile(rest[0], "<string>", "exec"), main.__dict__
    sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.realpath(first))
    main.__file__ = os.path.abspath(first)
    with open(first, "rb") as file:
        return compile(file.read(), first, "exec"), main.__dict__


def end(code):
    """Ends the process, as Python does. The destructors of libtorch do not run: they would copy the memory that forks share."""
    atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    os._exit(code)


load()
try:
    exec(*become(accept(sys.argv[1])))
except SystemExit as reason:
    if reason.code is not None and not isinstance(reason.code, int):
        print(reason.code, file=sys.stderr)
        end(1)
    end(reason.code or 0)
except Exception:
    sys.excepthook(*sys.exc_info())
    end(1)
end(0)
