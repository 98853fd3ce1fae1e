"""Images and masks."""
import gzip, io, struct

import numpy as np
from PIL import Image

from files import *


def image(name, expect, content, words=(), values=None, channels=3, ending="png", apply=None, tolerance=0):
    case("image", name, expect, {"x." + ending: content}, "x." + ending, words, values, channels=channels, apply=apply, tolerance=tolerance)


def images():
    grey3, rgb = planes(np.stack([GREY] * 3, -1)), planes(RGB)
    pil = Image.fromarray
    palette = pil(RGB).quantize(40)
    shown = planes(palette.convert("RGB"))
    wide = GREY.astype(np.uint16) * 257 + 3
    # PNG in all its forms.
    image("png-rgb", RIGHT, encode(pil(RGB), "PNG"), values=rgb)
    image("png-grey", RIGHT, encode(pil(GREY), "PNG"), values=grey3)
    image("png-palette", RIGHT, encode(palette, "PNG"), values=shown)
    image("png-rgba", RIGHT, encode(pil(np.dstack([RGB, ALPHA])), "PNG"), values=planes(over_white(RGB, ALPHA)))
    image("png-grey-alpha", RIGHT, encode(pil(np.dstack([GREY, ALPHA])), "PNG"), values=planes(over_white(np.stack([GREY] * 3, -1), ALPHA)))
    image("png-1-bit", RIGHT, encode(pil(GREY > 99), "PNG"), values=planes(np.stack([(GREY > 99) * 255] * 3, -1)))
    image("png-4-bit", RIGHT, png(12, 8, 4, 0, unfiltered((GREY >> 4).reshape(8, 6, 2) @ np.array([16, 1], np.uint8))), values=planes(np.stack([(GREY >> 4) * 17] * 3, -1)))
    image("png-16-bit-grey", RIGHT, encode(pil(wide), "PNG"), values=planes(np.stack([(wide.astype(np.uint32) + 128) // 257] * 3, -1)))
    image("png-16-bit-rgb", RIGHT, png(12, 8, 16, 2, unfiltered((RGB.astype(">u2") * 257))), values=rgb)
    image("png-interlaced", RIGHT, png(12, 8, 8, 2, adam7(RGB), interlace=1), values=rgb)
    image("png-transparent-colour", RIGHT, png(12, 8, 8, 0, unfiltered(GREY), chunk(b"tRNS", b"\0\0")), values=planes(np.stack([np.where(GREY == 0, 255, GREY)] * 3, -1)))
    image("png-gamma", RIGHT, png(12, 8, 8, 2, unfiltered(RGB), chunk(b"gAMA", struct.pack(">I", 45455))), values=rgb)
    image("png-more-behind-its-end", RIGHT, encode(pil(RGB), "PNG") + b"camera data" * 20, values=rgb)
    image("png-named-jpg", RIGHT, encode(pil(RGB), "PNG"), values=rgb, ending="jpg")
    image("png-animated", RIGHT, encode(pil(RGB), "PNG", save_all=True, append_images=[pil(255 - RGB)]), values=rgb)
    image("png-truncated", CAUSE, encode(pil(RGB), "PNG")[:60], ["damaged", "download it again"])
    damaged = bytearray(encode(pil(RGB), "PNG"))
    damaged[60] ^= 255
    image("png-damaged", CAUSE, bytes(damaged), ["damaged", "download it again"])
    image("png-huge", CAUSE, png(60000, 60000, 8, 2, b"\0"), ["60000x60000 pixels are more than the limit", "make the image smaller"])
    # Data.
    image("png-16-bit-data", RIGHT, encode(pil(wide), "PNG"), values=wide[None] / 65535, channels=1, tolerance=1e-6)
    image("png-rgb-as-brightness", RIGHT, encode(pil(RGB), "PNG"), values=np.asarray(pil(RGB).convert("L"))[None], channels=1)
    image("png-grey-for-4-channels", REMEDY, encode(pil(GREY), "PNG"), ["it has 1 channels, expected 4; set data.channels = 1"], GREY[None], channels=4)
    image("png-rgba-as-data", RIGHT, encode(pil(np.dstack([RGB, ALPHA])), "PNG"), values=planes(np.dstack([RGB, ALPHA])), channels=4)
    # BMP.
    for mode in ["RGB", "L", "P", "1", "RGBA"]:
        shown_bmp = pil(RGB).convert(mode)
        image("bmp-" + mode.lower(), RIGHT, encode(shown_bmp, "BMP"), values=planes(shown_bmp.convert("RGB")), ending="bmp")
    # TIFF.
    for name, options in [("raw", {}), ("lzw", dict(compression="tiff_lzw")), ("deflate", dict(compression="tiff_adobe_deflate")), ("packbits", dict(compression="packbits")), ("pages", dict(save_all=True, append_images=[pil(255 - RGB)]))]:
        image("tiff-" + name, RIGHT, encode(pil(RGB), "TIFF", **options), values=rgb, ending="tiff")
    image("tiff-big", REMEDY, encode(pil(RGB), "TIFF", big_tiff=True), ["BigTIFF, a format for files above 4 GiB, is not supported; convert"], rgb, ending="tif", apply="rgb")
    image("tiff-grey", RIGHT, encode(pil(GREY), "TIFF"), values=grey3, ending="tif")
    image("tiff-rgba", RIGHT, encode(pil(np.dstack([RGB, ALPHA])), "TIFF"), values=planes(over_white(RGB, ALPHA)), ending="tif")
    image("tiff-predictor", RIGHT, encode(pil(RGB), "TIFF", compression="tiff_lzw", tiffinfo={317: 2}), values=rgb, ending="tif")
    image("tiff-jpeg-in-colours", RIGHT, encode(pil(SMOOTH), "TIFF", compression="jpeg", quality=100), values=planes(SMOOTH), ending="tif", tolerance=6)
    as_png = "convert a picture to 8-bit RGB"
    image("tiff-float", REMEDY, encode(pil(GREY.astype(np.float32) / 7), "TIFF"), ["it has 1 band(s) of data, not an RGB picture; set data.channels = 1"], GREY[None].astype(np.float32) / 7, ending="tif")
    image("tiff-16-bit-data", RIGHT, encode(pil(wide), "TIFF"), values=wide[None] / 65535, channels=1, ending="tif", tolerance=1e-6)
    image("tiff-float-data", RIGHT, encode(pil(GREY.astype(np.float32) - 99.5), "TIFF"), values=GREY[None] - 99.5, channels=1, ending="tif")
    nans = GREY.astype(np.float32)
    nans[2, 3] = np.nan
    zeroed = np.where(np.isnan(nans), 0, nans)
    image("tiff-nan", REMEDY, encode(pil(nans), "TIFF"), ["the first is NaN, at column 3, row 2 of channel 0); replace them in the file, for example by 0"], zeroed[None], channels=1, ending="tif", apply="finite")
    image("tiff-32-bit-numbers", REMEDY, encode(pil(GREY.astype(np.int32)), "TIFF"), ["convert the image to 8- or 16-bit unsigned or to 32-bit floating-point samples"], GREY[None], channels=1, ending="tif", apply="float")
    image("tiff-palette", REMEDY, encode(palette, "TIFF"), [as_png], shown, ending="tif", apply="rgb")
    for mode in ["CMYK", "YCbCr", "LAB"]:
        other = pil(SMOOTH).convert(mode) if mode != "LAB" else Image.merge("LAB", [pil(SMOOTH[..., i]) for i in range(3)])
        try:
            converted = planes(other.convert("RGB"))
        except ValueError:
            continue
        content = encode(other, "TIFF")
        expect, words = {"CMYK": (RIGHT, []), "YCbCr": (REMEDY, ["such as YCbCr or CIELab: convert the image to RGB"]), "LAB": (REMEDY, [as_png])}[mode]
        image("tiff-" + mode.lower(), expect, content, words, converted, ending="tif", apply="rgb", tolerance=3)
    image("tiff-group-4", RIGHT, encode(pil(GREY > 99), "TIFF", compression="group4"), values=planes(np.stack([(GREY > 99) * 255] * 3, -1)), ending="tif")
    image("tiff-truncated", CAUSE, encode(pil(RGB), "TIFF")[:200], ["damaged"], ending="tif")
    # JPEG.
    for name, source, options in [("rgb", SMOOTH, {}), ("444", SMOOTH, dict(subsampling=0)), ("progressive", SMOOTH, dict(progressive=True)), ("grey", SMOOTH[..., 0], {}), ("restarts", SMOOTH, dict(restart_marker_blocks=1)), ("dpi", SMOOTH, dict(dpi=(72, 72), comment=b"hello"))]:
        content = encode(pil(source), "JPEG", quality=95, **options)
        image("jpeg-" + name, RIGHT, content, values=planes(Image.open(io.BytesIO(content)).convert("RGB")), ending="jpg")
    content = encode(pil(SMOOTH), "JPEG")
    image("jpeg-named-png", RIGHT, content, values=planes(Image.open(io.BytesIO(content))), ending="png")
    image("jpeg-zeros-before-its-end", RIGHT, content + bytes(100), values=planes(Image.open(io.BytesIO(content))), ending="jpg")
    cmyk = encode(pil(SMOOTH).convert("CMYK"), "JPEG")
    image("jpeg-cmyk", RIGHT, cmyk, values=planes(Image.open(io.BytesIO(cmyk)).convert("RGB")), ending="jpg", tolerance=2)
    image("jpeg-truncated", CAUSE, content[:len(content) - 40], ["damaged", "download it again"], ending="jpg")
    # WebP.
    image("webp-lossless", RIGHT, encode(pil(RGB), "WEBP", lossless=True), values=rgb, ending="webp")
    image("webp-lossy", RIGHT, encode(pil(SMOOTH), "WEBP", quality=100), values=planes(SMOOTH), ending="webp", tolerance=8)
    image("webp-alpha", RIGHT, encode(pil(np.dstack([RGB, ALPHA])), "WEBP", lossless=True, exact=True), values=planes(over_white(RGB, ALPHA)), ending="webp")
    content = encode(palette, "GIF")
    image("is-gif", RIGHT, content, values=planes(Image.open(io.BytesIO(content)).convert("RGB")), ending="png")
    for name, format, options in [("ppm", "PPM", {}), ("jpeg-2000", "JPEG2000", dict(irreversible=False))]:
        image("is-" + name, RIGHT, encode(pil(RGB), format, **options), values=rgb)
    content = encode(pil(RGB), "JPEG2000", irreversible=True)
    image("is-lossy-jpeg-2000", RIGHT, content, values=planes(Image.open(io.BytesIO(content)).convert("RGB")))
    # Formats that are not read, under a name of one that is.
    for name, format in [("ico", "ICO"), ("tga", "TGA"), ("dds", "DDS"), ("pcx", "PCX")]:
        picture = pil(RGB)
        options = dict(sizes=[(12, 8)]) if format == "ICO" else {}
        try:
            content = encode(picture, format, **options)
        except OSError:
            continue
        words = [as_png] if name in ("ico", "dds") else ["expected PNG, JPEG, BMP, TIFF, WebP, GIF, PNM, JPEG 2000 or an array of NumPy"]
        image("is-" + name, REMEDY, content, words, planes(Image.open(io.BytesIO(content)).convert("RGB")), ending="png", apply="rgb")
    image("is-lfs", CAUSE, LFS, ["it is a Git LFS pointer", "git lfs pull"])
    image("is-html", CAUSE, HTML, ["it is a web page (HTML)"])
    image("is-xml", CAUSE, XML, ["it is an XML text"])
    image("is-pdf", CAUSE, b"%PDF-1.7\n", ["it is a PDF document"])
    image("is-gzip", CAUSE, gzip.compress(content), ["it is compressed by gzip"])
    image("is-zip", CAUSE, b"PK\x03\x04aaaaaaaaaa", ["it is a zip archive"])
    image("is-npy", CAUSE, b"\x93NUMPY\x01\0v\0{", ["damaged"])
    image("is-text", CAUSE, b"hello, world", ["the file begins with \"hello, world\""])
    image("is-zeros", CAUSE, ZEROS, ["it is a file of zero bytes"])
    image("is-empty", CAUSE, b"", ["the file is empty"])


def masks():
    classes = ((ROWS // 2 + COLUMNS // 3) % 5).astype(np.uint8)
    pil = Image.fromarray

    def mask(name, expect, content, words=(), values=classes, ending="png", apply=None):
        case("mask", name, expect, {"m." + ending: content}, "m." + ending, words, values[None], apply=apply)

    palette = pil(classes)
    palette.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0, 0, 0, 128])
    mask("png-grey", RIGHT, encode(pil(classes), "PNG"))
    mask("png-palette", RIGHT, encode(palette, "PNG"))
    mask("png-palette-4-bit", RIGHT, encode(palette, "PNG", bits=4))
    mask("png-1-bit", RIGHT, encode(pil(classes > 2), "PNG"), values=classes > 2)
    mask("png-16-bit", RIGHT, encode(pil(classes.astype(np.uint16) * 300), "PNG"), values=classes.astype(np.uint16) * 300)
    mask("png-grey-as-rgb", RIGHT, encode(pil(np.stack([classes] * 3, -1)), "PNG"))
    mask("png-grey-alpha", RIGHT, encode(pil(np.dstack([classes, ALPHA])), "PNG"))
    mask("png-grey-as-rgba", RIGHT, encode(pil(np.dstack([classes] * 3 + [ALPHA])), "PNG"))
    mask("png-interlaced", RIGHT, png(12, 8, 8, 0, adam7(classes), interlace=1))
    mask("bmp-grey", RIGHT, encode(pil(classes), "BMP"), ending="bmp")
    mask("tiff-grey", RIGHT, encode(pil(classes), "TIFF"), ending="tif")
    mask("tiff-lzw", RIGHT, encode(pil(classes), "TIFF", compression="tiff_lzw"), ending="tif")
    mask("tiff-16-bit", RIGHT, encode(pil(classes.astype(np.uint16)), "TIFF"), ending="tif")
    mask("tiff-float", RIGHT, encode(pil(classes.astype(np.float32)), "TIFF"), ending="tif")
    mask("webp-lossless", RIGHT, encode(pil(np.stack([classes] * 3, -1)), "WEBP", lossless=True), ending="webp")
    mask("png-colours", CAUSE, encode(palette.convert("RGB"), "PNG"), ["holds colours or fractions; save it as a grey or palette PNG whose values are the classes"])
    mask("tiff-fractions", CAUSE, encode(pil(classes / np.float32(2)), "TIFF"), ["holds colours or fractions"], ending="tif")
    mask("jpeg", CAUSE, encode(pil(classes), "JPEG"), ["a JPEG file cannot be a mask", "PNG"], ending="jpg")
    mask("tiff-palette", RIGHT, encode(palette, "TIFF"), ending="tif")
    mask("tiff-1-bit", RIGHT, encode(pil(classes > 2), "TIFF"), values=classes > 2, ending="tif")
    mask("gif", RIGHT, encode(palette, "GIF"), ending="gif")
    mask("gif-named-png", RIGHT, encode(palette, "GIF"))
    mask("tiff-32-bit", REMEDY, encode(pil(classes.astype(np.int32)), "TIFF"), ["16-bit unsigned or to 32-bit floating-point samples"], ending="tif", apply="float")
    mask("truncated", CAUSE, encode(pil(classes), "PNG")[:60], ["damaged"])
    mask("lfs", CAUSE, LFS, ["it is a Git LFS pointer"])
    mask("html", CAUSE, HTML, ["it is a web page (HTML)"])
    mask("empty", CAUSE, b"", ["the file is empty"])
