"""Writes odd files of five kinds into a folder, with what a reader must find in them: `make.py OUT`.

OUT/cases.json lists the cases; each has a folder. `expect` is "right", "remedy" (an error whose remedy makes it right) or
"cause" (an error that names the cause; no remedy can restore what is lost). `make.py OUT apply CASE` does what a remedy in
words says, such as saving a picture as PNG; remedies that are commands or settings are run by the test itself.
"""
import bz2, gzip, json, lzma, os, shutil, sys

import numpy as np
from PIL import Image

from files import *
from pictures import images, masks


def texts():
    text = "The first line.\nZwölf Boxkämpfer jagen Viktor über den großen Sylter Deich, déjà vu.\n" * 3
    utf8 = text.encode()

    def add(name, expect, content, words=(), files=None, main="a.txt", more=text, **options):
        case("text", name, expect, files or {main: content}, main if not files else ".", words, values=np.frombuffer(more.encode(), np.uint8), **options)

    add("plain", RIGHT, utf8)
    add("without-a-last-line-break", RIGHT, utf8[:-1], more=text[:-1])
    add("crlf", RIGHT, utf8.replace(b"\n", b"\r\n"), more=text.replace("\n", "\r\n"))
    add("bom", RIGHT, b"\xef\xbb\xbf" + utf8)
    add("zeros-inside", RIGHT, utf8 + b"\0\0", more=text + "\0\0")
    add("other-ending", RIGHT, utf8, main="a.md")
    add("two-files", RIGHT, None, files={"t/a.txt": utf8[:-1], "t/B.TXT": utf8, "t/.hidden.txt": b"\xff", "t/notes.md": b"\xff"}, more=text + text[:-1], folder="t")
    add("utf-16", REMEDY, text.encode("utf-16"), ["iconv -f UTF-16 -t UTF-8"])
    add("utf-16-big-endian", REMEDY, b"\xfe\xff" + text.encode("utf-16-be"), ["iconv -f UTF-16 -t UTF-8"])
    add("latin-1", REMEDY, text.encode("latin-1"), ["is not UTF-8 from byte 18 on; convert it with"])
    add("windows", REMEDY, (text + "“€”").encode("cp1252"), ["iconv -f WINDOWS-1252"], more=text + "“€”")
    add("gzip", REMEDY, gzip.compress(utf8), ["is compressed by gzip; unpack it with"], main="a.txt.gz")
    add("gzip-named-txt", REMEDY, gzip.compress(utf8), ["is compressed by gzip; unpack it with"])
    add("bzip2", REMEDY, bz2.compress(utf8), ["is compressed by bzip2; unpack it with"], main="a.txt.bz2")
    add("xz", REMEDY, lzma.compress(utf8), ["is compressed by xz; unpack it with"], main="a.txt.xz")
    add("lfs", CAUSE, LFS, ["is a Git LFS pointer", "git -C", "lfs pull --include a.txt"])
    add("empty", CAUSE, b"", ["a.txt is empty", "set data.root to another text"])
    add("zip", CAUSE, b"PK\x03\x04\xff\xff..word/document.xml", ["is a zip archive"])
    add("parquet", CAUSE, b"PAR1\x15\x04\xff\xff", ["is a Parquet table"])
    add("pdf", CAUSE, b"%PDF-1.7\n\xff\xff", ["is a PDF document"])
    add("no-texts", CAUSE, None, ["has no .txt files"], files={"t/a.md": utf8}, folder="t")


def tables():
    picture = encode(Image.fromarray(RGB), "PNG")
    names = ["a.png", "b/c.png", "d.png"]
    numbers = np.array([[1.5, -2], [0.25, 1e3], [7, 8]], np.float32)
    good = "file,x,y\n" + "".join(f"{name},{x:g},{y:g}\n" for name, (x, y) in zip(names, numbers.tolist()))

    def add(name, expect, content, words=(), pictures=names, numbers=numbers, **more):
        files = {"train/" + picture_name: picture for picture_name in pictures}
        files["train/targets.csv"] = content.encode() if isinstance(content, str) else content
        case("table", name, expect, files, "train/targets.csv", words, numbers, **more)

    german = good.replace(".5", ",5").replace(".25", ",25").replace(",", ";", 0)
    german = "\n".join(";".join([row.split(",")[0]] + [cell.replace(".", ",") for cell in row.split(",")[1:]]) for row in good.split("\n"))
    add("plain", RIGHT, good)
    add("bom", RIGHT, "\ufeff" + good)
    add("crlf", RIGHT, good.replace("\n", "\r\n"))
    add("spaces", RIGHT, good.replace(",", " , "))
    add("quotes", RIGHT, "\n".join(",".join(f'"{cell}"' for cell in row.split(",")) for row in good.strip().split("\n")))
    add("empty-lines", RIGHT, good.replace("\n", "\n\n"))
    add("exponents", RIGHT, good.replace("1000", "1.0e+3"))
    add("no-last-line-break", RIGHT, good[:-1])
    add("semicolons", RIGHT, good.replace(",", ";"))
    add("semicolons-and-commas", RIGHT, german)
    add("semicolons-with-bom", RIGHT, "\ufeff" + german)
    add("sep-line", RIGHT, "sep=;\n" + german)
    add("tabs", RIGHT, good.replace(",", "\t"))
    add("tabs-and-commas", RIGHT, german.replace(";", "\t"))
    add("utf-16", RIGHT, good.encode("utf-16"))
    add("utf-16-big-endian", RIGHT, b"\xfe\xff" + german.encode("utf-16-be"))
    add("utf-16-without-mark", REMEDY, german.encode("utf-16-le"), ["in UTF-16 without a byte order mark; convert it with `iconv -f UTF-16LE"])
    add("utf-16-damaged", CAUSE, good.encode("utf-16")[:-1], ["it begins as UTF-16 and has other bytes from this line on"])
    add("two-marks", CAUSE, german.replace("0,25", "0.25"), ["with another decimal mark than the numbers since line 2"])
    add("latin-1", REMEDY, good.replace("x,y", "größe,y").encode("latin-1"), ["WINDOWS-1252"])
    add("gzip", REMEDY, gzip.compress(good.encode()), ["the table is compressed by gzip; unpack it with"])
    no_header = good.split("\n", 1)[1]
    add("no-header", REMEDY, no_header, ["but it begins with \"a.png\"; add such a line"], apply="header")
    add("other-header", REMEDY, good.replace("file", "image", 1), ["name the column of paths `file`"], apply="rename")
    add("decimal-commas-in-quotes", REMEDY, good.replace("1.5", '"1,5"'), ["which is not a finite number; write 1.5, with a point"], apply="point")
    add("decimal-commas", REMEDY, good.replace("1.5", "1,5"), ["with decimal points: a comma ends a field"], apply="points")
    add("nan", REMEDY, good.replace("1.5", "nan"), ["\"nan\", which is not a finite number", "or remove the line and its image"], numbers=numbers[1:], apply="remove")
    add("empty-cell", CAUSE, good.replace("1.5", ""), ["x is \"\""])
    add("words", CAUSE, good.replace("1.5", "tall"), ["x is \"tall\""])
    add("too-few", CAUSE, good.replace(",1.5", ""), ["the line has 2 fields, and the first line 3"])
    add("twice", REMEDY, good + "a.png,1,1\n", ["\"a.png\" is also in line 2"], apply="last")
    add("another-picture", CAUSE, good.replace("a.png", "z.png"), ["there is no image \"z.png\""])
    add("backslashes", REMEDY, good.replace("b/c", "b\\c"), ["there is no image \"b\\\\c.png\""], apply="slashes")
    add("absolute", REMEDY, good.replace("a.png", "/data/a.png"), ["is not a path below the folder"], apply="below")
    add("line-missing", REMEDY, good.replace("d.png,7,8\n", ""), ["without a line in targets.csv: `d.png`"], apply="line")
    add("same-name", CAUSE, good.replace("x,y", "x,x"), ["the name \"x\" occurs twice"])
    add("excel", CAUSE, b"PK\x03\x04\xff\xff[Content_Types].xml", ["the table is a spreadsheet of Excel or LibreOffice; save it as CSV in UTF-8"])
    add("html", CAUSE, HTML, ["the table is a web page (HTML)"])
    add("json", CAUSE, '[{"file": "a.png", "x": 1.5, "y": -2}]', ["the table is a JSON text; save it as CSV in UTF-8"])
    add("lfs", CAUSE, LFS, ["the table is a Git LFS pointer", "lfs pull --include targets.csv"])
    add("empty", CAUSE, b"", ["the table is empty"])
    composed, marked = "caf\u00e9.png", "cafe\u0301.png"
    for name, listed, stored in [("names-of-macos", composed, marked), ("table-of-macos", marked, composed)]:
        content = good.replace("a.png", listed)
        add(name, REMEDY, content, ["are the same name in two Unicode forms; rename the files with"], pictures=[stored] + names[1:], numbers=numbers[[1, 0, 2]])


def folders():
    """Folders of classes, and of images with masks, whose names differ in Unicode form."""
    picture = encode(Image.fromarray(RGB), "PNG")
    composed, marked = "caf\u00e9", "cafe\u0301"
    for name, train, test in [("classes-of-macos", composed, marked), ("classes-for-macos", marked, composed)]:
        files = {f"{split}/{folder}/1.png": picture for split, own in [("train", train), ("test", test)] for folder in [own, "tea"]}
        case("classes", name, REMEDY, files, ".", ["are the same name in two Unicode forms"])
    case("classes", "another-class", REMEDY, {f"{split}/{folder}/1.png": picture for split, own in [("train", "a"), ("test", "b")] for folder in [own, "tea"]}, ".", ["`b`; add training images, or remove the folders"], apply="classes")
    case("classes", "korean", REMEDY, {"train/\ud55c/1.png": picture, "train/tea/1.png": picture, "test/\u1112\u1161\u11ab/1.png": picture}, ".", ["two Unicode forms"])
    files = {f"images/{composed}.png": picture, "images/x.png": picture, f"masks/{marked}.png": picture, "masks/x.png": picture}
    case("pairs", "masks-of-macos", REMEDY, files, ".", ["two Unicode forms"])
    case("pairs", "no-mask", REMEDY, {"images/a.png": picture, "images/b.png": picture, "masks/a.png": picture}, ".", ["without a mask", "give both the same names"], apply="masks")


def apply(name):
    """Does what a remedy in words says."""
    found = next(case for case in json.load(open(os.path.join(OUT, "cases.json"))) if case["kind"] + "-" + case["name"] == name)
    folder = os.path.join(OUT, name)
    path, new = os.path.join(folder, found["file"]), os.path.join(folder, "new.png")
    action = found["apply"]
    edits = {
        "header": lambda text: "file,x,y\n" + text, "rename": lambda text: text.replace("image", "file", 1),
        "point": lambda text: text.replace('"1,5"', "1.5"), "points": lambda text: text.replace("1,5", "1.5"),
        "remove": lambda text: text.replace("a.png,nan,-2\n", ""), "last": lambda text: text.replace("a.png,1,1\n", ""),
        "slashes": lambda text: text.replace("\\", "/"), "below": lambda text: text.replace("/data/", ""),
        "line": lambda text: text + "d.png,7,8\n",
    }
    if action == "remove":
        os.remove(os.path.join(folder, "train/a.png"))
    if action in edits:
        with open(path) as file:
            text = edits[action](file.read())
        with open(path, "w") as file:
            file.write(text)
        return print(path)
    if action == "classes":
        shutil.rmtree(os.path.join(folder, "test/b"))
        return print(path)
    if action == "masks":
        shutil.copy(os.path.join(folder, "masks/a.png"), os.path.join(folder, "masks/b.png"))
        return print(path)
    if action == "unzip":
        shutil.unpack_archive(path, os.path.join(folder, "new"))
        return print(os.path.join(folder, "new/w.safetensors"))
    if action == "unpickle":
        import pickle, safetensors.torch, torch
        new = os.path.join(folder, "new.safetensors")
        with open(path, "rb") as file:
            tensors = {name: torch.from_numpy(value.copy()) for name, value in pickle.load(file).items()}
        safetensors.torch.save_file(tensors, new)
        return print(new)
    picture = Image.open(path)
    if action == "rgb":
        picture.convert("RGB").save(new)
    elif action == "values":
        Image.fromarray(np.asarray(picture)).save(new)
    else:
        new = os.path.join(folder, "new.tif")
        Image.fromarray(np.nan_to_num(np.asarray(picture).astype(np.float32))).save(new)
    print(new)


if len(sys.argv) > 2:
    apply(sys.argv[3])
else:
    from weights import weights

    for make in [images, masks, texts, tables, weights, folders]:
        make()
    with open(os.path.join(OUT, "cases.json"), "w") as out:
        json.dump(CASES, out)
    print(len(CASES), "cases")
