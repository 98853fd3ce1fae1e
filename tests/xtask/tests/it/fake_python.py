"""Replaces python3 in the tests: everything except pip is the real Python's.

FAKE_PIP selects the result of `pip download`: "ok" makes a small wheel; "cut:NAME", "hang:NAME" do so for all
packages except NAME; any other value fails with pip's message for it. FAKE_LOG gets a line per call.
"""

import os
import sys
import time
import zipfile

WORDS = {
    "network": "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(\"Failed to establish "
    "a new connection: [Errno 101] Network is unreachable\")': /simple/torch/\n"
    "ERROR: Could not find a version that satisfies the requirement torch (from versions: none)\n"
    "ERROR: No matching distribution found for torch",
    "absent": "ERROR: Could not find a version that satisfies the requirement torch (from versions: 2.9.0, 2.10.0)\n"
    "ERROR: No matching distribution found for torch",
    "checksum": "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    torch:\n        Got 00",
    "full": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "cut": "ERROR: Exception:\nurllib3.exceptions.IncompleteRead: IncompleteRead(10 bytes read, 20 more expected)",
    "odd": "ERROR: something unheard of",
}
TORCH = {
    "torch/include/torch/headeronly/version.h": "#define TORCH_VERSION_MAJOR 2\n"
    "#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n",
    "torch/lib/libc10.so": "library",
    "torch/include/ATen/ATen.h": "// header\n",
    "torch/share/cmake/Torch/TorchConfig.cmake": "# cmake\n",
    "torch/nn/functional.py": "# Python\n",
    "torch/bin/torch_shm_manager": "program",
    "torch/bin/protoc": "not needed",
    "torch/test/cpp_test": "not needed",
}


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def make_wheel(dest, name, version, key_file):
    files = {key_file: f"{name} {version}", f"{name.replace('-', '_')}-{version}.dist-info/licenses/LICENSE": "terms"}
    if name == "torch":
        files |= TORCH
    with zipfile.ZipFile(os.path.join(dest, f"{name.replace('-', '_')}-{version}-py3-none-any.whl"), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def download(mode):
    with open(option("--requirement")) as lines:
        pin, comment = lines.readline().split(" # ")
    name, version = pin.split(" --hash=sha256:")[0].split("==")
    dest = option("--dest")
    os.makedirs(dest)
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(f"{name}\n")
    what, _, target = mode.partition(":")
    if what in WORDS and target in ("", name):
        sys.exit(WORDS[what])
    if what == "hang" and target == name:
        with open(os.path.join(os.environ["TMPDIR"], "half.whl"), "w") as half:
            half.write("half a wheel")
        with open(os.environ["FAKE_LOG"] + ".pid", "w") as pid:
            pid.write(str(os.getpid()))
        time.sleep(600)
    if what == "slow":
        time.sleep(0.2)
    make_wheel(dest, name, version, comment.split()[2])


mode = os.environ.get("FAKE_PIP", "ok")
if sys.argv[1:3] != ["-m", "pip"]:
    if os.environ.get("FAKE_UNPACK") == "full":
        sys.exit("OSError: [Errno 28] No space left on device")
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
elif mode == "none":
    sys.exit("/usr/bin/python3: No module named pip")
elif mode == "broken":
    sys.exit("ImportError: cannot import name 'main'")
elif sys.argv[3] == "download":
    download(mode)
elif sys.argv[3] != "--version":
    sys.exit(f"unexpected: pip {sys.argv[3]}")
