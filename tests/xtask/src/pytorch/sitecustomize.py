"""Runs at the start of target/pytorch/bin/python: see prepare.py."""

import ctypes
import os
import sys

folder = os.path.join(os.path.dirname(__file__), "empty")
for name in os.listdir(folder):
    ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL)
sys.setdlopenflags(os.RTLD_LAZY)
