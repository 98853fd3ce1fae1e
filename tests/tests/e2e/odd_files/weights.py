"""Weights of PyTorch, Hugging Face and others."""
import bz2, gzip, io, json, lzma, pickle, tarfile, zipfile

import numpy as np
import torch
from PIL import Image

from files import *


def weights():
    import safetensors.torch as st
    torch.manual_seed(1)
    model = {"stem.conv.weight": torch.randn(4, 3, 3, 3), "stem.conv.bias": torch.randn(4), "blocks.0.weight": torch.randn(5, 4),
             "blocks.1.weight": torch.randn(4, 5), "head.weight": torch.randn(3, 4), "head.bias": torch.randn(3)}
    flat = lambda tensors: np.concatenate([tensors[name].float().numpy().ravel() for name in sorted(tensors)])
    body = {name: value for name, value in model.items() if not name.startswith("head.")}
    plain = st.save(model)

    def add(name, expect, files, main, words=(), values=model, **more):
        files = {main: files} if not isinstance(files, dict) else files
        case("weights", name, expect, files, main, words, flat(values) if values else None, head=int("head.weight" in (values or model)), **more)

    def prefixed(prefix, tensors=model):
        return st.save({prefix + name: value for name, value in tensors.items()})

    add("plain", RIGHT, plain, "w.safetensors")
    add("without-ending", RIGHT, plain, "weights")
    add("named-pt", RIGHT, plain, "w.pt")
    add("float16", RIGHT, st.save({name: value.half() for name, value in model.items()}), "w.safetensors", values={name: value.half() for name, value in model.items()})
    add("bfloat16", RIGHT, st.save({name: value.bfloat16() for name, value in model.items()}), "w.safetensors", values={name: value.bfloat16() for name, value in model.items()})
    add("float64", RIGHT, st.save({name: value.double() for name, value in model.items()}), "w.safetensors")
    add("metadata", RIGHT, st.save(model, {"epoch": "3"}), "w.safetensors")
    for prefix in ["module.", "model.", "state_dict.", "_orig_mod.", "backbone.", "net.module._orig_mod.", "state_dict.model."]:
        add("prefix-" + prefix.strip("."), RIGHT, prefixed(prefix), "w.safetensors", said=f"without the prefix `{prefix}`")
    add("headless", RIGHT, st.save(body), "w.safetensors", values=body, said="the classifier keeps its initial values (the file has none)")
    add("headless-with-prefix", RIGHT, prefixed("module.", body), "w.safetensors", values=body, said="without the prefix `module.`")
    add("another-head", RIGHT, st.save(body | {"fc.weight": torch.randn(9, 4)}), "w.safetensors", values=body, said="the file has none")
    add("other-classes", RIGHT, st.save(body | {"head.weight": torch.randn(9, 4), "head.bias": torch.randn(9)}), "w.safetensors", values=body, said="9 classes in the file, 3 in the model")
    rename = "model.weights_rename = [["
    teacher = {"student." + name: value for name, value in model.items()} | {"teacher." + name: value + 1 for name, value in model.items()}
    add("two-copies", REMEDY, st.save(teacher), "w.safetensors", [rename, "or model.weights_rename"])
    add("queue-beside", REMEDY, st.save({"encoder_q." + name: value for name, value in model.items()} | {"queue": torch.randn(7)}), "w.safetensors", [rename])
    add("optimizer-beside", REMEDY, st.save({"model." + name: value for name, value in model.items()} | {"optimizer." + name: value * 2 for name, value in model.items()}), "w.safetensors", [rename])
    add("more-tensors", REMEDY, st.save(model | {"decoder.weight": torch.randn(3)}), "w.safetensors", ["Set model.weights_mode = \"partial\" to load 6 of the model's 6 tensors"])
    add("another-network", CAUSE, st.save({"layers.0.weight": torch.randn(3)}), "w.safetensors", ["does not fit the model", "unexpected tensors: `layers.0.weight`"])
    add("nan", CAUSE, st.save(model | {"blocks.1.weight": torch.full((4, 5), float("nan"))}), "w.safetensors", ["the tensor `blocks.1.weight` has 20 values that are not finite", "use weights from before"])
    add("infinite", CAUSE, st.save(model | {"head.bias": torch.tensor([1, float("inf"), 0])}), "w.safetensors", ["the tensor `head.bias` has 1 values that are not finite (the first is inf)"])
    add("whole-numbers", CAUSE, st.save(model | {"head.bias": torch.tensor([1, 2, 0])}), "w.safetensors", ["`head.bias` is I64, in the model Float"])
    # Sharded.
    def shards(save=st.save, ending="safetensors", prefix="", names=("model-00001-of-00002", "model-00002-of-00002")):
        half = sorted(model)[:3]
        first = {prefix + name: value for name, value in model.items() if name in half}
        second = {prefix + name: value for name, value in model.items() if name not in half}
        files = [f"{name}.{ending}" for name in names]
        index = {"metadata": {"total_size": 1}, "weight_map": {**{name: files[0] for name in first}, **{name: files[1] for name in second}}}
        return {files[0]: save(first), files[1]: save(second)}, index

    def torch_save(tensors, **options):
        out = io.BytesIO()
        torch.save(tensors, out, **options)
        return out.getvalue()

    index_name = "model.safetensors.index.json"
    files, index = shards()
    written = lambda index: json.dumps(index, indent=2).encode()
    add("index", RIGHT, files | {index_name: written(index)}, index_name)
    add("index-without-spaces", RIGHT, files | {index_name: json.dumps(index).encode()}, index_name)
    add("index-with-bom", RIGHT, files | {index_name: b"\xef\xbb\xbf" + written(index)}, index_name)
    prefixed_files, prefixed_index = shards(prefix="model.")
    add("index-with-prefix", RIGHT, prefixed_files | {index_name: written(prefixed_index)}, index_name, said="without the prefix `model.`")
    bins, bin_index = shards(torch_save, "bin", names=("pytorch_model-00001-of-00002", "pytorch_model-00002-of-00002"))
    add("index-of-pickles", REMEDY, bins | {"pytorch_model.bin.index.json": written(bin_index)}, "pytorch_model.bin.index.json", ["its files are of torch.save; convert it with"])
    one = sorted(files)[0]
    add("index-part-missing", CAUSE, {one: files[one], index_name: written(index)}, index_name, ["1 of the 2 files of this index are missing in its folder: `model-00002-of-00002.safetensors`"])
    add("index-cut", CAUSE, files | {index_name: written(index)[:150]}, index_name, ["not an index of sharded weights", "download it again"])
    twice = written(index).replace(b'"weight_map": {', b'"weight_map": {"head.bias": "model-00002-of-00002.safetensors",')
    add("index-twice", CAUSE, files | {index_name: twice}, index_name, ["lists the tensor `head.bias` twice"])
    outside = written(index).replace(b"model-00002", b"../model-00002")
    add("index-outside", CAUSE, files | {index_name: outside}, index_name, ["which is not in its own folder"])
    add("index-of-pointers", CAUSE, {one: LFS, sorted(files)[1]: LFS, index_name: written(index)}, index_name, ["the file is a Git LFS pointer", "lfs pull --include model-00001-of-00002.safetensors"])
    add("one-part", REMEDY, files | {index_name: written(index)}, one, ["set model.weights to the index of all parts, such as model.safetensors.index.json"], index=index_name)
    add("folder", REMEDY, {"hub/" + name: content for name, content in (files | {index_name: written(index), "config.json": b"{}"}).items()} , "hub", ["is a folder; set model.weights to"])
    add("config", REMEDY, {"config.json": b'{"model_type": "vit"}', "model.safetensors": plain}, "config.json", ["a JSON text, not a safetensors file; set model.weights to"])
    add("run", REMEDY, {"run/recipe.toml": b"", "run/checkpoints/latest/model.safetensors": plain}, "run", ["is a folder; set model.weights to"])
    # Of PyTorch and NumPy.
    convert = "convert it with `python3 -c"
    saved = "a file of torch.save (zip with pickle), not a safetensors file"
    add("torch", REMEDY, torch_save(model), "w.pt", [saved, convert])
    add("torch-named-safetensors", REMEDY, torch_save(model), "w.safetensors", [saved, convert])
    add("torch-beside-other-weights", REMEDY, {"w.bin": torch_save(model), "w.safetensors": b"precious"}, "w.bin", [saved, "w-1.safetensors"])
    add("torch-odd-name", REMEDY, torch_save(model), "it's a $HOME `w`.pt", [saved, convert])
    for key in ["state_dict", "model_state_dict", "model", "net", "ema"]:
        add("torch-of-" + key, REMEDY, torch_save({"epoch": 3, key: model, "optimizer": {"state": {}}}), "checkpoint.pth", [saved, convert])
    add("torch-of-ddp", REMEDY, torch_save({"state_dict": {"module." + name: value for name, value in model.items()}}), "c.pth.tar", [saved, convert])
    tied = dict(model) | {"decoder.weight": model["head.weight"]}
    add("torch-shared-memory", REMEDY, torch_save({name: value.t().contiguous().t() if value.dim() == 2 else value for name, value in tied.items() if name != "decoder.weight"}), "w.pt", [saved, convert])
    add("torch-old", REMEDY, torch_save(model, _use_new_zipfile_serialization=False), "w.pth", ["a file of torch.save of PyTorch 1.5 or older", convert])

    whole = "a file of torch.save(model) holds a whole module"
    add("torch-module", CAUSE, torch_save(torch.nn.Linear(4, 3)), "w.pt", [saved, whole, "write its state_dict() with"], fails=True)
    add("torch-numbers", CAUSE, torch_save({"epoch": 3}), "w.pt", [saved], fails=True)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torch.nn.ModuleDict({"conv": torch.nn.Conv2d(3, 4, 3)})
            self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 5, bias=False), torch.nn.Linear(5, 4, bias=False)])
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x):
            x = self.stem["conv"](x).mean((2, 3))
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    net = Net()
    net.load_state_dict(model)
    add("torchscript", REMEDY, lambda path: torch.jit.trace(net, torch.zeros(1, 3, 8, 8)).save(path), "w.pt", ["a TorchScript module, not a safetensors file; reading it can run any program: if you trust it, convert"])
    add("exported", REMEDY, lambda path: torch.export.save(torch.export.export(net, (torch.zeros(2, 3, 8, 8),)), path), "w.pt2", ["an exported program (.pt2), not a safetensors file; reading it can run any program: if you trust it, convert"])
    arrays = io.BytesIO()
    np.savez(arrays, **{name: value.numpy() for name, value in model.items()})
    add("npz", REMEDY, arrays.getvalue(), "w.npz", ["a NumPy archive (.npz)", convert])
    one_array = io.BytesIO()
    np.save(one_array, np.zeros(3))
    add("npy", CAUSE, one_array.getvalue(), "w.npy", ["a NumPy array (.npy)", "save the model's state_dict()"])
    add("pickle", REMEDY, pickle.dumps({name: value.numpy() for name, value in model.items()}), "w.pkl", ["a Python pickle", "run any program", "write its tensors with safetensors.torch.save_file"], apply="unpickle")
    # Packed.
    add("gzip", REMEDY, gzip.compress(plain), "w.safetensors.gz", ["compressed by gzip", "unpack it with"])
    add("gzip-without-time", REMEDY, gzip.compress(plain, mtime=0), "w.safetensors", ["compressed by gzip", "unpack it with"])
    add("bzip2", REMEDY, bz2.compress(plain), "w.safetensors.bz2", ["compressed by bzip2"])
    add("xz", REMEDY, lzma.compress(plain), "w.safetensors.xz", ["compressed by xz"])

    def archive(path):
        with tarfile.open(path, "w") as out:
            about = tarfile.TarInfo("w.safetensors")
            about.size = len(plain)
            out.addfile(about, io.BytesIO(plain))

    def zipped(path):
        with zipfile.ZipFile(path, "w") as out:
            out.writestr("w.safetensors", plain)

    add("tar", REMEDY, archive, "w.tar", ["a tar archive", "mkdir"], inside="w.safetensors")
    add("zip", REMEDY, zipped, "w.zip", ["a zip archive", "unpack it into a new folder and set model.weights"], apply="unzip")
    for name, start, words in [
        ("lfs", LFS, ["a Git LFS pointer", "lfs pull --include w.safetensors"]), ("html", HTML, ["a web page (HTML)", "/resolve/ for /blob/"]),
        ("html-with-bom", b"\xef\xbb\xbf\n <HTML>", ["a web page (HTML)"]), ("xml", XML, ["an XML text"]), ("zeros", ZEROS, ["a file of zero bytes", "download or copy it again"]),
        ("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(64), ["an HDF5 file, as of Keras"]), ("onnx", b"\x08\x08\x12\x07pytorch\x1a\x05" + bytes(64), ["an ONNX model"]),
        ("gguf", b"GGUF\x03\0\0\0" + bytes(64), ["a GGUF file, as of llama.cpp"]), ("tflite", b"\x1c\0\0\0TFL3" + bytes(64), ["a TensorFlow Lite model"]),
        ("7z", b"7z\xbc\xaf\x27\x1c" + bytes(64), ["a 7z archive"]), ("rar", b"Rar!\x1a\x07\x01\0" + bytes(64), ["a RAR archive"]),
        ("zstd", b"\x28\xb5\x2f\xfd" + bytes(64), ["compressed by zstd", "unpack it with `zstd -dc"]), ("picture", encode(Image.fromarray(RGB), "PNG"), ["a picture"]),
        ("json", b"[1, 2, 3]", ["a JSON text"]), ("program", b"\x7fELF" + bytes(64), ["a Linux program"]), ("text", b"see the other folder", ["not a safetensors file", "or name another file"]),
        ("empty", b"", ["it has 0 bytes", "download or copy it again"]), ("cut", plain[:-9], ["the file is truncated", "download or write it again"]), ("longer", plain + b"\0", ["the file is too long"]),
    ]:
        add("is-" + name, CAUSE, start, "w.safetensors", words, values=None)
