"""The sources of models: timm, torchvision, Hugging Face, and a function in a file."""

HEADS = {
    "image-classification": "AutoModelForImageClassification",
    "segmentation": "AutoModelForSemanticSegmentation",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "image-text-to-text": "AutoModelForImageTextToText",
    "none": "AutoModel",
}

# The arguments of a function in a file that get flags of the command.
OTHER_ARGUMENTS = {"classes": ("classes", "num_classes"), "pretrained": ("pretrained",)}
IMAGE_ARGUMENTS = {"image_size": ("image_size", "img_size"), "channels": ("channels", "in_chans")}
FLAG_ARGUMENTS = {**OTHER_ARGUMENTS, **IMAGE_ARGUMENTS}

# The longest default of a text input; longer ones must be given.
LONGEST_TEXT = 512


def load(request):
    """Returns the module and its inputs."""
    kind, _, name = request["source"].partition(":")
    loaders = {"timm": from_timm, "torchvision": from_torchvision, "hf": from_hugging_face}
    with without_values() if request["weights"] == "none" else contextlib.nullcontext():
        random.seed(request["seed"])
        torch.manual_seed(request["seed"])
        if kind in loaders:
            return loaders[kind](name, request)
        file, _, function = request["source"].rpartition(":")
        return from_file(file, function, request)


@contextlib.contextmanager
def loading(what):
    """Turns exceptions of a library that creates a model into one sentence."""
    try:
        yield
    except Failure:
        raise
    except Exception as error:
        if is_offline(error):
            forbidden = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
            why = "HF_HUB_OFFLINE forbids a download" if forbidden else "its host cannot be reached"
            raise Failure(
                f"{what} is not on this machine, and {why}; download it on a machine that is connected, and copy the cache "
                "(HF_HOME, TORCH_HOME)"
            ) from error
        raise Failure(f"{what} cannot be created: {explain(error)}") from error


def is_offline(error):
    words = ("ConnectionError", "ConnectTimeout", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "URLError",
             "MaxRetryError", "ConnectError", "ProxyError")
    text = "couldn't connect", "offline mode", "Connection error"
    return any(
        type(link).__name__ in words or any(part in str(link) for part in text) for link in chain_of(error)
    )


def from_timm(name, request):
    timm = need("timm")
    if not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")) and not timm.is_model(name.split(".")[0]):
        raise Failure(f"timm has no model {name}{close(name, timm.list_models())}; `timm.list_models()` lists all")
    flags = {"pretrained": request["pretrained"]}
    if request["classes"]:
        flags["num_classes"] = request["classes"]
    if request["channels"]:
        flags["in_chans"] = request["channels"]
    if request["image_size"]:
        flags["img_size"] = sides(request)
    add_args(flags, request, {"num_classes": "classes", "in_chans": "channels", "img_size": "image-size", "pretrained": "pretrained"})
    missing = []
    with loading(f"timm:{name}"), noting_missing(missing), knowing_args(request, lambda: timm.create_model(name)):
        try:
            model = timm.create_model(name, **flags)
        except TypeError as error:
            # Convolutional networks take images of any size.
            if "img_size" not in flags or "img_size" not in str(error):
                raise
            del flags["img_size"]
            model = timm.create_model(name, **flags)
    for module, names in missing:
        if module is model:
            check_new(model, names, request)
    config = model.pretrained_cfg
    channels, height, width = config.get("input_size", (3, 224, 224))
    if request["pretrained"] and flags.get("img_size") not in (None, (height, width)):
        places = [name for name, _ in model.named_parameters() if re.search("pos_embed|relative_position|rel_pos", name)]
        if places:
            more = f" and {len(places) - 1} more" if places[1:] else ""
            old, new = (" x ".join(map(str, size)) for size in ((height, width), flags["img_size"]))
            print(f"dtrain: {places[0]}{more} was resampled by timm for images of {new}, from {old}", file=sys.stderr)
    request["images"] = timm_images(config)
    return model, image_inputs(model, request, (height, width), channels)


def sides(request):
    """Returns the height and width of --image-size, or None."""
    size = request["image_size"]
    return (size, size) if isinstance(size, int) else size and tuple(size)


def add_args(flags, request, own):
    """Adds --arg to the arguments of a builder. `own` are arguments that have flags of the command."""
    for name in request["args"]:
        if name in own or name in flags:
            raise Failure(f"--arg {name}: dtrain sets this argument; use --{own.get(name, name).replace('_', '-')}")
    flags.update(request["args"])


@contextlib.contextmanager
def knowing_args(request, build):
    """Turns the error of an unknown --arg into one that lists the known ones: those of the class that `build` makes."""
    try:
        yield
    except TypeError as error:
        name = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if not name or name.group(1) not in request["args"]:
            raise
        with torch.device("meta"):
            made = type(build())
        raise unknown_arg(name.group(1), made.__name__, list(inspect.signature(made.__init__).parameters)[1:]) from error


def unknown_arg(name, what, known):
    return Failure(f"--arg {name}: {what} takes no such argument{close(name, known)}; it takes {', '.join(known) or 'none'}")


def from_torchvision(name, request):
    models = need("torchvision").models
    known = models.list_models()
    if name not in known:
        raise Failure(f"torchvision has no model {name}{close(name, known)}")
    builder = models.get_model_builder(name)
    module = builder.__module__
    for family in ("detection", "video", "optical_flow"):
        if f".{family}" in module:
            raise Failure(f"{name} is a {family} model of torchvision; dtrain import takes classification and segmentation")
    if request["channels"] not in (None, 3):
        raise Failure(f"--channels {request['channels']}: models of torchvision take 3 channels; use timm or FILE.py:FUNCTION")
    arguments = inspect.signature(builder).parameters
    flags = {"weights": None}
    if "weights_backbone" in arguments:
        flags["weights_backbone"] = None
    add_args(flags, request, {"num_classes": "classes", "image_size": "image-size", "weights": "pretrained", "weights_backbone": "pretrained"})
    size, state, grids = None, None, None
    with loading(f"torchvision:{name}"), knowing_args(request, lambda: models.get_model(name, weights=None)):
        weights = models.get_model_weights(name).DEFAULT
        default = weights.transforms()
        size = getattr(default, "crop_size", None) or getattr(default, "resize_size", None)
        if request["pretrained"]:
            state = weights.get_state_dict(progress=False, check_hash=True)
        classes = request["classes"] or (len(weights.meta["categories"]) if state else None)
        if classes:
            flags["num_classes"] = classes
        # As in torchvision's own training: the auxiliary head is a separate output.
        if "aux_loss" in arguments:
            flags["aux_loss"] = not state or any(key.startswith("aux_classifier.") for key in state)
        # The builders set it for these weights.
        if state and name in ("googlenet", "inception_v3"):
            flags.setdefault("transform_input", True)
        if request["image_size"] and name.startswith("vit_"):
            height, width = sides(request)
            if height != width:
                raise Failure(f"--image-size {height}x{width}: this model takes square images; give one number")
            flags["image_size"] = height
        model = models.get_model(name, **flags)
        if state:
            if name.startswith("vit_"):
                grids = [(side // model.patch_size,) * 2 for side in (size[0], model.image_size)]
            load_state(model, state, request, grids)
    request["images"] = torchvision_images(default)
    size = (size[0], size[0]) if size else None
    return model, image_inputs(model, request, size)


def from_hugging_face(name, request):
    transformers = need("transformers")
    with contextlib.suppress(AttributeError):
        transformers.utils.logging.set_verbosity_error()
    make_masks_exportable()
    if name.startswith(("/", "./", "../")) and not os.path.isdir(name):
        raise Failure(f"the folder {name} does not exist")
    if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "config.json")):
        raise Failure(f"the folder {name} has no config.json; give a folder that save_pretrained has written")
    with loading(f"hf:{name}"):
        config, original = (transformers.AutoConfig.from_pretrained(name) for _ in range(2))
        change_config(config, request)
        maker = auto_class(transformers, config, request)
        if request["pretrained"]:
            model = pretrained(maker, name, config, original, request)
        else:
            automatic = hasattr(maker, "from_config")
            model = maker.from_config(config) if automatic else maker(config)
    # `from_pretrained` returns all models in evaluation mode.
    return model.float().train(), hugging_face_inputs(transformers, model, request)


def change_config(config, request):
    config.use_cache = False
    # Models of images and texts have a configuration for each.
    config.get_text_config().use_cache = False
    if request["classes"]:
        config.num_labels = request["classes"]
    size = sides(request)
    if hasattr(config, "vision_config") and not hasattr(config, "image_size"):
        change_images(config.vision_config, request, size)
    else:
        change_images(config, request, size)
    own = {"num_labels": "classes", "image_size": "image-size", "num_channels": "channels", "n_channels": "channels"}
    add_args({}, request, own)
    for name, value in request["args"].items():
        # transformers keeps it under this name.
        name = "_attn_implementation" if name == "attn_implementation" else name
        if not hasattr(config, name):
            known = [key for key in inspect.signature(type(config).__init__).parameters if key not in ("self", "kwargs")]
            raise unknown_arg(name, type(config).__name__, known)
        setattr(config, name, value)


def change_images(config, request, size):
    if size and hasattr(config, "image_size"):
        square = not isinstance(config.image_size, (list, tuple))
        if square and size[0] != size[1]:
            raise Failure(f"--image-size {size[0]}x{size[1]}: this model takes square images; give one number")
        config.image_size = size[0] if square else list(size)
    if request["channels"]:
        name = next((key for key in ("num_channels", "n_channels") if hasattr(config, key)), None)
        if name:
            setattr(config, name, request["channels"])


def auto_class(transformers, config, request):
    """Returns the class that creates the model: --head, else config.architectures, else the first that fits."""
    if request["head"]:
        chosen = getattr(transformers, HEADS[request["head"]])
        if type(config) not in chosen._model_mapping:
            fit = [head for head, auto in HEADS.items() if type(config) in getattr(transformers, auto)._model_mapping]
            raise Failure(
                f"--head {request['head']}: transformers has no such model for {type(config).__name__}; it has: {', '.join(fit)}"
            )
        return chosen
    for architecture in config.architectures or []:
        if hasattr(transformers, architecture):
            return getattr(transformers, architecture)
    for auto in HEADS.values():
        auto = getattr(transformers, auto)
        if type(config) in auto._model_mapping:
            return auto
    raise Failure(f"transformers has no model for {type(config).__name__}; write a FILE.py:FUNCTION that returns one")


def hugging_face_inputs(transformers, model, request):
    if is_image_text(transformers, model):
        return image_text_inputs(transformers, model, request)
    if request["inputs"]:
        return parse_inputs(request["inputs"])
    config, name = model.config, model.main_input_name
    if name == "pixel_values":
        source = request["source"].partition(":")[2]
        request["images"] = hugging_face_images(transformers, source)
        size = getattr(config, "image_size", None) or 224
        size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        return image_inputs(model, request, size, getattr(config, "num_channels", 3), name)
    for flag in ("image_size", "channels"):
        if request[flag]:
            raise Failure(f"--{flag.replace('_', '-')} has no effect: the input of this model is {name}; leave it out")
    if name != "input_ids":
        raise Failure(f"the input of this model is {name}; give its shape with --inputs, such as --inputs {name}=80x3000")
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    length = min(longest or LONGEST_TEXT, LONGEST_TEXT)
    given = {name: example(name, torch.int64, (length,))}
    classifiers = transformers.AutoModelForSequenceClassification._model_mapping.values()
    if type(model) in classifiers and "attention_mask" in inspect.signature(model.forward).parameters:
        # Texts of one length in a batch have padding, which must not count.
        given["attention_mask"] = example("attention_mask", torch.int64, (length,))
    return given


def make_masks_exportable():
    """Makes transformers' masks by broadcasting instead of vmap, which export cannot trace. Same values."""
    try:
        from transformers import masking_utils
    except ImportError:
        return
    original = getattr(masking_utils, "_ignore_causal_mask_sdpa", None)

    def broadcast(mask_function, *_, **__):
        def mask(batch, head, query, key):
            sizes = batch.shape[0], head.shape[0], query.shape[0], key.shape[0]
            made = mask_function(
                batch[:, None, None, None], head[None, :, None, None], query[None, None, :, None], key[None, None, None, :]
            )
            return made.expand(*sizes)

        return mask

    def ignore(padding_mask, query_length, kv_length, *rest, **named):
        if padding_mask is not None:
            return False
        # transformers decides as it does without an export.
        name = "is_torchdynamo_compiling"
        has_name = hasattr(masking_utils, name)
        untraced = replaced(masking_utils, name, lambda: False) if has_name else contextlib.nullcontext()
        with untraced:
            return original(padding_mask, query_length, kv_length, *rest, **named)

    if hasattr(masking_utils, "_vmap_for_bhqkv"):
        masking_utils._vmap_for_bhqkv = broadcast
        masking_utils.TransformGetItemToIndex = contextlib.nullcontext
    if original:
        masking_utils._ignore_causal_mask_sdpa = ignore


def from_file(file, function, request):
    if not os.path.isfile(file):
        raise Failure(f"the file {file} does not exist")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    name = os.path.splitext(os.path.basename(file))[0]
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Failure(f"{file} cannot be imported: {explain(error)}{at(error)}") from error
    maker = getattr(module, function, None)
    if not callable(maker):
        functions = [known for known, value in vars(module).items() if inspect.isfunction(value)]
        raise Failure(f"{file} has no function {function}{close(function, functions)}")
    if request["role"]:
        return own_program(maker, f"{function} in {file}", request)
    try:
        made = maker(**flags_for(maker, f"{file}:{function}", request))
    except Failure:
        raise
    except Exception as error:
        raise Failure(f"{function} in {file} failed: {explain(error)}{at(error)}") from error
    if "transformers" in sys.modules:
        make_masks_exportable()
    model, given = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, torch.nn.Module):
        raise Failure(
            f"{function} in {file} returns a value of type {type(model).__name__}; return a torch.nn.Module, or (module, inputs)"
        )
    # A function may return a model of timm.
    if isinstance(getattr(model, "pretrained_cfg", None), dict):
        request["images"] = timm_images(model.pretrained_cfg)
    if request["inputs"]:
        given = parse_inputs(request["inputs"])
    elif given is None and request["image_size"]:
        return model, image_inputs(model, request)
    for flag, names in IMAGE_ARGUMENTS.items():
        if request[flag] and not argument(maker, names):
            word = flag.replace("_", "-")
            raise Failure(f"--{word} has no effect: {function} in {file} takes no argument `{flag}`; add it, or leave out --{word}")
    if given is None:
        raise Failure(
            f"the inputs of {function} in {file} are unknown; return (module, inputs), or give --inputs or --image-size"
        )
    return model, given


def flags_for(maker, shown, request):
    """Returns the flags of the command that the function takes as arguments."""
    flags = {}
    for flag, names in FLAG_ARGUMENTS.items():
        taken = argument(maker, names)
        if request[flag] and flag in OTHER_ARGUMENTS and not taken:
            raise Failure(f"{shown} takes no argument `{names[0]}`; add it to the function, or leave out --{flag}")
        if request[flag] and taken:
            flags[taken] = tuple(request[flag]) if isinstance(request[flag], list) else request[flag]
    parameters = inspect.signature(maker).parameters
    variadic = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    own = {name: flag for flag, names in FLAG_ARGUMENTS.items() for name in names}
    add_args(flags, request, own)
    for name in request["args"]:
        if name not in parameters and not variadic:
            raise unknown_arg(name, shown, list(parameters))
    return flags


def argument(maker, names):
    """Returns the first of these names that is an argument of the function."""
    return next((name for name in names if name in inspect.signature(maker).parameters), None)
