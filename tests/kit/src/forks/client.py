"""Runs `python ARGUMENTS` in a fork of server.py, with this process's environment, folder and standard streams."""

import array
import json
import os
import signal
import socket
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)
environment = dict(os.environ)
connection = socket.socket(socket.AF_UNIX)
connection.connect("\0" + environment.pop("DTRAIN_TEST_FORKS"))
request = {"arguments": sys.argv[1:], "environment": environment, "folder": os.getcwd()}
text = json.dumps(request).encode()
streams = array.array("i", [0, 1, 2])
connection.sendmsg([len(text).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
connection.sendall(text)
answer = connection.recv(4)
if len(answer) < 4:
    sys.exit("the process that starts Python programs has ended")
code = int.from_bytes(answer, "little", signed=True)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
