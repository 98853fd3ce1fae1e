"""Makes PyTorch of the CUDA wheel importable without CUDA's libraries: python3 prepare.py TORCH FOLDER CXX

torch's Python library needs CUDA libraries that the CPU never calls. For each missing one, creates an empty
library of this name in FOLDER. sitecustomize.py loads them, and enables lazy binding of functions.
"""

import ctypes
import os
import shlex
import subprocess
import sys


def main(torch, folder, compiler):
    library = os.path.join(torch, "lib", "libtorch_python.so")
    while True:
        try:
            return ctypes.CDLL(library, os.RTLD_LAZY)
        except OSError as error:
            name = str(error).split(":")[0]
            empty = os.path.join(folder, name)
            if "cannot open shared object file" not in str(error) or os.path.exists(empty):
                raise
        command = ["-shared", "-x", "c++", os.devnull, f"-Wl,-soname,{name}", "-o", empty]
        subprocess.run(shlex.split(compiler) + command, check=True)
        ctypes.CDLL(empty, ctypes.RTLD_GLOBAL)


try:
    main(*sys.argv[1:])
except (OSError, subprocess.CalledProcessError) as error:
    sys.exit(str(error))
