"""Lets PyTorch of the CUDA wheel be imported where CUDA's libraries are absent: python3 prepare.py TORCH FOLDER CXX

torch's Python library names libraries of CUDA that the CPU never calls. For each that is absent an empty one of that name is
made in FOLDER; sitecustomize.py loads them, and has functions looked up only when they are called.
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
