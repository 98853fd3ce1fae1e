"""A case, and helpers to encode pictures."""
import io, json, os, struct, sys, zlib

import numpy as np
from PIL import Image

OUT = sys.argv[1]
CASES = []
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body></body></html>\n"
XML = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>\n'
ZEROS = bytes(4096)
RIGHT, REMEDY, CAUSE = "right", "remedy", "cause"


def case(kind, name, expect, files, main, words=(), values=None, **more):
    """Adds a case: files by name (bytes, or a function that writes to a path), and the values that a reader must find."""
    folder = os.path.join(OUT, kind + "-" + name)
    os.makedirs(folder)
    for file, content in files.items():
        path = os.path.join(folder, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if callable(content):
            content(path)
        else:
            with open(path, "wb") as out:
                out.write(content)
    if values is not None:
        values = np.ascontiguousarray(values)
        values.astype("<f4").tofile(os.path.join(folder, "values.bin"))
        more["shape"] = list(values.shape)
    CASES.append(dict(kind=kind, name=name, expect=expect, file=main, words=list(words), **more))


# Pictures and data: W x H = 12 x 8, with values that tell rows, columns and channels apart.
ROWS, COLUMNS = np.mgrid[0:8, 0:12]
GREY = (ROWS * 17 + COLUMNS * 9).astype(np.uint8)
RGB = np.stack([GREY, 255 - GREY, (ROWS * 31 + COLUMNS) % 256], -1).astype(np.uint8)
SMOOTH = np.stack([ROWS * 8 + 90, COLUMNS * 6 + 70, (ROWS + COLUMNS) * 5 + 60], -1).astype(np.uint8)
ALPHA = (COLUMNS * 20).astype(np.uint8)


def encode(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def planes(array):
    return np.moveaxis(np.asarray(array), -1, 0)


def over_white(rgb, alpha):
    rgb, alpha = rgb.astype(np.uint32), alpha[..., None].astype(np.uint32)
    return (rgb * alpha + 255 * (255 - alpha) + 127) // 255


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, rows, extra=b"", interlace=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def unfiltered(rows):
    return b"".join(b"\0" + row.tobytes() for row in rows)


def adam7(array):
    """The rows of an interlaced picture."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    return b"".join(unfiltered(array[y::dy, x::dx]) for x, y, dx, dy in passes if array[y::dy, x::dx].size)
