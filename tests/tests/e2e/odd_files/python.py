"""A Python that has imported PyTorch already: commands of remedies run in forks of it, in place of seconds of imports each.

`python.py serve SOCKET` runs until its standard input ends. `python.py SOCKET ARGS` is `python ARGS`, for `-c CODE` only.
"""
import array, json, os, socket, sys


def serve(path):
    import threading, traceback
    import numpy, safetensors.torch, torch  # what commands import

    def run(connection):
        message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        folder, (flag, code, *arguments) = json.loads(message)
        assert flag == "-c", flag
        worker = os.fork()
        if worker == 0:
            for at, fd in enumerate(fds):
                os.dup2(fd, at)
            os.chdir(folder)
            sys.argv = ["-c", *arguments]
            status = 0
            try:
                exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        connection.sendall(bytes([os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) & 255]))
        os._exit(0)

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        handler = os.fork()
        if handler == 0:
            run(connection)
        connection.close()
        os.waitpid(handler, 0)


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    message = json.dumps([os.getcwd(), sys.argv[2:]]).encode()
    server.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    sys.exit(server.recv(1)[0])
