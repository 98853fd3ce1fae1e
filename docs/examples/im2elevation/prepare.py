"""Cuts a colour map and an elevation map of the Earth into crops, with a table `image;depth;split`.

python prepare.py EARTH OUT

EARTH has color.jpg and elevation.jpg, both 4096 x 2048 pixels. The crops have 64 x 64 pixels of 10 km. Heights become PNG files
of 16 bits in units of 0.1 m.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 64
SEA, METRES = 24, 28.0  # the level of the sea in elevation.jpg, and the metres of one level
ROWS = range(256, 1664 - SIDE + 1)  # 67.5 degrees north to 56 degrees south
BAND = 128  # columns: 11.25 degrees of longitude
SETS = ["train", "train", "test", "train", "train", "val", "train", "test"]  # of eight bands, again and again from 180 degrees west

earth, out = Path(sys.argv[1]), Path(sys.argv[2])
colour = Image.open(earth / "color.jpg").convert("RGB")
level = np.asarray(Image.open(earth / "elevation.jpg").convert("F"))
height = np.clip(level - SEA, 0, None) * METRES
depth = np.round(10 * height).astype(np.uint16)

(out / "images").mkdir(parents=True)
(out / "depths").mkdir()
lines, heights = ["image;depth;split"], []
for band, split in enumerate(4 * SETS):
    step = SIDE // 2 if split == "train" else SIDE
    for y in ROWS[::step]:
        for x in range(band * BAND, (band + 1) * BAND - SIDE + 1, step):
            crop = depth[y : y + SIDE, x : x + SIDE]
            if (crop > 0).mean() < 0.2:  # sea
                continue
            name = f"{split}_{x:04}_{y:04}.png"
            colour.crop((x, y, x + SIDE, y + SIDE)).save(out / "images" / name)
            Image.fromarray(crop).save(out / "depths" / name)
            lines.append(f"images/{name};depths/{name};{split}")
            heights.append((split, crop / 10))
(out / "earth.csv").write_text("\n".join(lines) + "\n")

mean = np.mean([crop for split, crop in heights if split == "train"])
for name in dict.fromkeys(SETS):
    crops = np.array([crop for split, crop in heights if split == name])
    rmse = np.sqrt(((crops - mean) ** 2).mean())
    print(f"{name}: {len(crops)} crops, up to {crops.max():.1f} m; RMSE of the constant {mean:.1f} m: {rmse:.1f} m")
