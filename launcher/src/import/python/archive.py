"""The file: the archive of torch.export.save, and the evaluation program in extra/."""


def raw(tensor):
    """Returns the key under which equal tensors are stored once."""
    return tensor.untyped_storage().data_ptr(), tensor.dtype


class Sink:
    """A file whose first error is kept for later: PyTorch's writer aborts the process if a write fails."""

    def __init__(self, file):
        self.file, self.error = file, None

    def write(self, data):
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)


class Archive:
    """Writes the layout that torch 2.8 introduced, with any torch since 2.6."""

    def __init__(self, file):
        self.sink = Sink(file)
        self.writer = torch._C.PyTorchFileWriter(self.sink)
        self.writer.set_min_version(6)
        self.stored, self.count = {}, {"weight": 0, "tensor": 0}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.text("archive_format", "pt2")
            self.text("archive_version", "0")
        self.writer.write_end_of_file()
        if kind is None and self.sink.error:
            raise self.sink.error

    def bytes(self, name, data):
        self.writer.write_record(name, data, len(data))

    def text(self, name, text):
        self.bytes(name, text.encode())

    def tensors(self, folder, prefix, tensors):
        """Writes each storage once. Returns the configuration: where the tensor of each name is."""
        from torch._export.serde.serialize import _dataclass_to_dict, serialize_tensor_meta

        config = {}
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise Failure(f"the constant {name} is a {type(tensor).__name__}; a model may only have tensors")
            meta = _dataclass_to_dict(serialize_tensor_meta(tensor))
            config[name] = {
                "path_name": self.store(folder, prefix, tensor),
                "is_param": isinstance(tensor, torch.nn.Parameter),
                "use_pickle": False,
                "tensor_meta": meta,
            }
        return {"config": config}

    def store(self, folder, prefix, tensor):
        storage = tensor.detach().untyped_storage()
        key = (folder, *raw(tensor)) if storage.nbytes() else (folder, id(tensor))
        for known, (path, other) in self.stored.items():
            if known == key or (prefix == "tensor" and known[0] == folder and same(tensor, other)):
                return path
        path = f"{prefix}_{self.count[prefix]}"
        self.count[prefix] += 1
        if storage.data_ptr() in untouched:
            # Left out: the trainer takes zeros.
            pass
        elif storage.nbytes():
            self.writer.write_record(folder + path, storage, storage.nbytes())
        else:
            self.bytes(folder + path, b"")
        self.stored[key] = path, tensor
        return path


def same(one, other):
    """Returns whether two constants have the same bytes in the same layout."""
    layout = lambda tensor: (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())
    whole = lambda tensor: torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return layout(one) == layout(other) and torch.equal(whole(one), whole(other))


def graph_json(program):
    """Returns the program as JSON. Neither weights nor example inputs are pickled."""
    from torch._export.serde import serialize as serde

    with replaced(serde, "serialize_torch_artifact", lambda *_, **__: b""):
        return serde.serialize(program).exported_program


def write_archive(file, training, evaluation, about):
    graph, evaluation_graph = graph_json(training), graph_json(evaluation)
    with Archive(file) as archive:
        weights = archive.tensors("data/weights/", "weight", training.state_dict)
        archive.text("data/weights/model_weights_config.json", json.dumps(weights))
        constants = archive.tensors("data/constants/", "tensor", training.constants)
        archive.text("data/constants/model_constants_config.json", json.dumps(constants))
        archive.bytes("models/model.json", graph)
        # torch.export.load reads this entry, and takes an empty one.
        archive.text("data/sample_inputs/model.pt", "")
        archive.bytes("extra/evaluation.json", evaluation_graph)
        # The weights are those of the training program.
        config = archive.tensors("data/constants/", "tensor", evaluation.constants)
        if config != constants:
            archive.text("extra/evaluation_constants_config.json", json.dumps(config))
        archive.text("extra/dtrain.json", json.dumps(about))


STORED = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
          "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}


def save_tensors(path, tensors):
    """Writes a safetensors file, without its package. Tensors of other dtypes are left out."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items() if dtype_of(tensor) in STORED}
    header, end = {}, 0
    # The format needs wide dtypes first, to align all.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": STORED[dtype_of(tensor)], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            if tensor.numel():
                file.write((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()))
