#!/usr/bin/env python3
"""Packs class folders of images as tar shards and as Parquet files, in the order in which dtrain lists the folders;
writes arrays of NumPy and JPEG 2000.

    pip install -r tests/parity/requirements.txt -r tests/parity/requirements-packs.txt
    python tests/parity/make_packs.py --out tests/parity/reference
    python tests/parity/make_packs.py --folder cifar100 --out packed      # any folder with train/CLASS/* and test/CLASS/*

A second run writes the same bytes. README.md describes every file.
"""

import argparse
import io
import json
import pathlib
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ENDINGS = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".tif", ".tiff", ".webp"}


def draw(folder):
    """Writes a small folder: two classes that differ in their colours, of PNG and JPEG."""
    random = np.random.default_rng(7)
    for split, count in [("train", 12), ("test", 5)]:
        for at, name in enumerate(["dark", "light"]):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = random.integers(0, 120, (10, 12, 3)) + 90 * at
                ending = "jpg" if number % 3 == 1 else "png"
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{number:03}.{ending}")


def samples(folder, split):
    """Returns class names, and (class number, path below the split) in dtrain's order: by class, then by bytes of the path."""
    root = folder / split
    names = sorted((entry.name for entry in root.iterdir() if entry.is_dir()), key=str.encode)
    files = []
    for number, name in enumerate(names):
        found = (path for path in (root / name).rglob("*") if path.suffix.lower() in ENDINGS)
        below = sorted((path.relative_to(root).as_posix() for path in found), key=str.encode)
        files.extend((number, path) for path in below)
    return names, files


def parts(all_, count):
    """Cuts a list into `count` parts that follow each other."""
    bounds = [len(all_) * at // count for at in range(count + 1)]
    return [all_[begin:end] for begin, end in zip(bounds, bounds[1:])]


def pack_tar(folder, split, out, shards):
    names, files = samples(folder, split)
    for at, part in enumerate(parts(files, shards)):
        with tarfile.open(out / f"{split}-{at:03}.tar", "w", format=tarfile.GNU_FORMAT) as tar:
            for number, path in part:
                key, ending = path.rsplit(".", 1)
                image = (folder / split / path).read_bytes()
                for name, content in [(f"{key}.{ending}", image), (f"{key}.cls", names[number].encode())]:
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def pack_parquet(folder, split, out, shards):
    """As the `datasets` library writes image folders: `image` of bytes and path, `label` with its names in the metadata."""
    names, files = samples(folder, split)
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())], metadata=metadata)
    for at, part in enumerate(parts(files, shards)):
        cells = [{"bytes": (folder / split / path).read_bytes(), "path": path} for _, path in part]
        table = pa.table([pa.array(cells, image), pa.array([number for number, _ in part])], schema=schema)
        path = out / f"{split}-{at:05}-of-{shards:05}.parquet"
        pq.write_table(table, path, row_group_size=max(5, len(part) // 4), compression="snappy")


def pack_indexed(folder, split, out):
    """With an index of pages, of one image each, names of classes in place of numbers, and other types of columns."""
    names, files = samples(folder, split)
    columns = {
        "picture": [(folder / split / path).read_bytes() for _, path in files],
        "kind": [names[number] for number, _ in files],
        "size": [float(at) / 4 for at in range(len(files))],
        "even": [at % 2 == 0 for at in range(len(files))],
    }
    path = out / f"indexed-{split}.parquet"
    options = {"compression": "zstd", "write_page_index": True, "write_batch_size": 1, "data_page_size": 1, "write_statistics": False}
    pq.write_table(pa.table(columns), path, row_group_size=10, use_dictionary=["kind"], **options)


def draw_formats(out):
    """Writes arrays of NumPy, and JPEG 2000 with what Pillow (OpenJPEG) reads of it."""
    out.mkdir(exist_ok=True)
    y, x, c = np.mgrid[0:3, 0:4, 0:2]
    both = (c * 100 + y * 10 + x).astype(np.uint8)
    one = both[:, :, 0]
    classes = np.arange(12).reshape(3, 4) % 3
    colours = (np.mgrid[0:3, 0:4, 0:3] * np.array([10, 1, 80])[:, None, None, None]).sum(0).astype(np.uint8)
    nan = one.astype(np.float32)
    nan[2, 1] = np.nan
    arrays = {
        "u8": both,
        "u8-first": np.ascontiguousarray(both.transpose(2, 0, 1)),
        "u8-fortran": np.asfortranarray(both),
        "u2-big": both.astype(">u2"),
        "u2-map": one.astype("<u2"),
        "f4": one.astype("<f4") / 4,
        "f8-big": (one / 4).astype(">f8"),
        "rgb": colours,
        "rgb-first": np.ascontiguousarray(colours.transpose(2, 0, 1)),
        "i8-mask": classes.astype(np.int64),
        "bool-mask": np.arange(12).reshape(3, 4) % 2 == 1,
        "f4-mask": classes.astype(np.float32),
        "negative": classes - 1,
        "nan": nan,
        "vector": np.arange(5, dtype=np.uint8),
        "text": np.array([["ab"]]),
    }
    for name, array in arrays.items():
        np.save(out / f"{name}.npy", array)
    np.savez_compressed(out / "one.npz", both)
    np.savez(out / "named.npz", image=both, mask=classes)
    np.savez(out / "several.npz", a=one, b=one)
    random = np.random.default_rng(3)
    waves = (127 + 100 * np.sin(np.mgrid[0:37, 0:45].sum(0)[:, :, None] / np.array([3, 5, 9]))).astype(np.uint8)
    waves[5:20, 7:30] = random.integers(0, 256, (15, 23, 3))
    picture = Image.fromarray(waves)
    alpha = picture.copy()
    alpha.putalpha(255)
    words = Image.fromarray((waves[:, :, 0].astype(np.uint16) * 257) ^ 0x55)
    pictures = {
        "lossless.jp2": (picture, {"irreversible": False}),
        "lossy.jp2": (picture, {"irreversible": True, "quality_mode": "rates", "quality_layers": [4]}),
        "tiles.j2k": (picture, {"tile_size": (16, 16), "irreversible": False}),
        "grey.jp2": (picture.convert("L"), {"irreversible": False}),
        "alpha.jp2": (alpha, {"irreversible": False}),
        "rate.jp2": (picture, {"irreversible": False, "quality_mode": "rates", "quality_layers": [4]}),
        "words.jp2": (words, {"irreversible": False}),
    }
    for name, (image, options) in pictures.items():
        image.save(out / name, **options)
        read = Image.open(out / name)
        read = read if name == "words.jp2" else read.convert("RGB")
        read.save((out / name).with_suffix(".png"), optimize=True)
    alpha.save(out / "bands.j2k", irreversible=False)  # a codestream says nothing of opacity
    # The byte of the depth in the header: 4 bits, and signed values.
    picture.convert("L").save(out / "few-bits.j2k", irreversible=False)
    bits = bytearray((out / "few-bits.j2k").read_bytes())
    for name, depth in (("few-bits", 3), ("signed", 0x87)):
        bits[42] = depth
        (out / f"{name}.j2k").write_bytes(bits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="pack this folder instead of a drawn one")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--shards", type=int, default=2, help="files of each set")
    args = parser.parse_args()
    out = args.out if args.folder else args.out / "packs"
    out.mkdir(parents=True, exist_ok=True)
    folder = args.folder or out
    if not args.folder:
        draw(folder)
        draw_formats(args.out / "formats")
    for split in ["train", "test"]:
        pack_tar(folder, split, out, args.shards)
        pack_parquet(folder, split, out, args.shards)
        pack_indexed(folder, split, out)


if __name__ == "__main__":
    main()
