"""Unpacks the parts of a wheel that a build needs: python3 unpack.py WHEEL FOLDER

Each file gets its name only when it is complete. Large files are flushed: after a power failure, a stamp
written later never exists without them.
"""

import os
import shutil
import sys
import zipfile

KEPT = ("torch/", "torchgen/", "functorch/", "nvidia/")
# Of the programs, keeps only the one that `import torch` needs.
DROPPED = ("torch/test/", "torch/bin/")
SHM_MANAGER = "torch/bin/torch_shm_manager"
LARGE = 1 << 20


def is_kept(name):
    kept = name.startswith(KEPT) and (name == SHM_MANAGER or not name.startswith(DROPPED))
    return kept or ".dist-info/licenses/" in name or name.endswith(".dist-info/METADATA")


def main(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.is_dir() or not is_kept(member.filename):
                continue
            if ".." in member.filename.split("/"):
                sys.exit(f"{member.filename} would be written outside {folder}")
            path = os.path.join(folder, *member.filename.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            beside = path + ".new"
            with archive.open(member) as source, open(beside, "wb") as target:
                shutil.copyfileobj(source, target, LARGE)
                if member.file_size >= LARGE:
                    target.flush()
                    os.fsync(target.fileno())
            os.replace(beside, path)


try:
    main(*sys.argv[1:])
except KeyboardInterrupt:
    sys.exit(130)
except (OSError, zipfile.BadZipFile) as error:
    sys.exit(str(error))
