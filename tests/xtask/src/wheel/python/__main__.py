import os
import sys

from dtrain import command

os.execv(command(), ["dtrain", *sys.argv[1:]])
