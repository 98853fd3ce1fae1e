"""The script of `dtrain import`, for tests that call its parts."""

import os
import re


def load(folder):
    """Returns the names of the script whose parts FOLDER/mod.rs lists, without its start."""
    with open(os.path.join(folder, "mod.rs")) as file:
        parts = re.findall(r'include_str!\("python/(\w+)\.py"\)', file.read())
    space = {"__name__": "dtrain_import"}
    for part in parts:
        with open(os.path.join(folder, "python", part + ".py")) as file:
            exec(compile(re.sub(r"\nmain\(\)\s*$", "\n", file.read()), f"<{part}>", "exec"), space)
    space["check_torch"]()
    return space
