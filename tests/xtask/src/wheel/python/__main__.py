import os
import sys

from dtrain import command

# Scripts run with this Python, as with `python -m torch.distributed.run`.
os.environ.setdefault("PYTHON_EXEC", sys.executable)
os.execv(command(), ["dtrain", *sys.argv[1:]])
