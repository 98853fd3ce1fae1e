"""Writes 20 mammals of CIFAR-100 in the layout of CUB-200-2011, and 80 other classes as class folders.

python prepare.py CIFAR100 OUT     CIFAR100 has train/CLASS/*.png and test/CLASS/*.png
"""

import shutil
import sys
from pathlib import Path

MAMMALS = """bear leopard lion tiger wolf fox porcupine possum raccoon skunk hamster mouse rabbit shrew squirrel
camel cattle chimpanzee elephant kangaroo""".split()
TRAIN = 30  # of each mammal's images, as CUB has; the others are for the test

source, out = Path(sys.argv[1]), Path(sys.argv[2])
birds = out / "mammals"
lines = {"images.txt": [], "image_class_labels.txt": [], "train_test_split.txt": [], "classes.txt": []}
for number, name in enumerate(sorted(MAMMALS), 1):
    lines["classes.txt"].append(f"{number} {number:03}.{name}")
    files = sorted(source.glob(f"*/{name}/*.png"), key=lambda path: path.name)
    for place, file in enumerate(files):
        image = len(lines["images.txt"]) + 1
        copy = birds / "images" / f"{number:03}.{name}" / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        lines["images.txt"].append(f"{image} {copy.relative_to(birds / 'images')}")
        lines["image_class_labels.txt"].append(f"{image} {number}")
        lines["train_test_split.txt"].append(f"{image} {int(place < TRAIN)}")
for name, text in lines.items():
    (birds / name).write_text("\n".join(text) + "\n")
for folder in sorted(path for path in source.glob("t*/*") if path.name not in MAMMALS):
    shutil.copytree(folder, out / "others" / folder.relative_to(source))
print(f"{out}: {len(lines['images.txt'])} images of {len(MAMMALS)} mammals, the others in {out / 'others'}")
