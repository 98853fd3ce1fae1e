"""Pretrained weights: only a head may be new, and position embeddings are resampled for another image size."""

# Parts of names of heads, and of what stands between a backbone and its head.
HEAD_PARTS = {
    "classifier", "classification_head", "head", "heads", "head_dist", "fc", "fc_norm", "lm_head", "score", "decode_head", "auxiliary_head",
    "aux_classifier", "cls", "cls_classifier", "distillation_classifier", "qa_outputs", "pooler", "AuxLogits", "aux1", "aux2",
}

POSITIONS = ("pos_embed", "pos_embedding", "position_embedding", "position_embeddings")


def is_head(model, name):
    """Returns whether a tensor belongs to the head: its name is that of a head, or it is outside of the base model of transformers."""
    base = getattr(model, "base_model_prefix", "")
    beside = base and hasattr(model, base) and not name.startswith(base + ".")
    return bool(beside or HEAD_PARTS & set(name.split(".")))


def check_new(model, new, request):
    """Prints the tensors that pretrained weights have not filled, and refuses others than a head's."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    new = [name for name in new if name in trained or name.endswith((".running_mean", ".running_var"))]
    wrong = [name for name in new if not is_head(model, name)]
    if wrong:
        given = [f"--{flag.replace('_', '-')}" for flag in ("image_size", "channels", "head") if request[flag]] + ["--arg"] * bool(request["args"])
        remedy = f"leave out {' and '.join(given)}, or --pretrained" if given else "leave out --pretrained, or use other weights"
        raise Failure(
            f"the pretrained weights of {request['source']} have no fitting {several([f'`{name}`' for name in wrong])}, which would be random; {remedy}"
        )
    if new:
        print(f"dtrain: new weights, not pretrained: {', '.join(new)}", file=sys.stderr)


def is_position(name):
    return any(part in POSITIONS for part in name.split("."))


def resample(name, tensor, shape, old, new):
    """Returns position embeddings (1 x N x D or N x D) of another grid, as timm's `resample_abs_pos_embed` computes them; None if
    they do not fit the grids. Tokens before the grid, such as the class, stay."""
    if not is_position(name) or tensor.dim() not in (2, 3) or tensor.shape[-1] != shape[-1]:
        return None
    rows, wanted = tensor.shape[-2], shape[-2]
    prefix = rows - old[0] * old[1]
    if prefix < 0 or wanted != prefix + new[0] * new[1]:
        return None
    first, grid = tensor.reshape(rows, -1).float().split([prefix, old[0] * old[1]])
    grid = grid.reshape(1, *old, -1).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, size=new, mode="bicubic", antialias=True)
    made = torch.cat([first, grid.permute(0, 2, 3, 1).flatten(0, 2)]).reshape(shape)
    sizes = " to ".join(f"{height}x{width}" for height, width in (old, new))
    print(f"dtrain: {name} was resampled from {sizes}", file=sys.stderr)
    return made


def load_state(model, state, request, grids=None):
    """Loads weights whose shape fits. `grids` are the patches of an image (height, width) in the weights and in the model."""
    own = model.state_dict()
    fit = {key: value for key, value in state.items() if key in own and own[key].shape == value.shape}
    for key in own:
        if grids and key in state and key not in fit:
            resampled = resample(key, state[key], own[key].shape, *grids)
            fit.update({key: resampled} if resampled is not None else {})
    model.load_state_dict(fit, strict=False)
    check_new(model, [key for key in own if key not in fit], request)


def grid_of(config):
    """Returns the patches of an image (height, width), or None."""
    pair = lambda size: tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    image, patch = pair(getattr(config, "image_size", None)), pair(getattr(config, "patch_size", None))
    return (image[0] // patch[0], image[1] // patch[1]) if None not in (*image, *patch) else None


def pretrained(maker, name, config, original, request):
    """Returns a model of transformers with its pretrained weights. `original` is the configuration without the flags."""
    load = lambda config: maker.from_pretrained(name, config=config, ignore_mismatched_sizes=True, output_loading_info=True)
    model, found = load(config)
    other = [entry if isinstance(entry, str) else entry[0] for entry in found["mismatched_keys"]]
    own, old, new = model.state_dict(), grid_of(original), grid_of(config)
    positions = [key for key in other if is_position(key)]
    if positions and old and new:
        state = load(original)[0].state_dict()
        for key in positions:
            resampled = resample(key, state[key], own[key].shape, old, new)
            if resampled is not None:
                own[key].copy_(resampled)
                other.remove(key)
    check_new(model, [*found["missing_keys"], *other], request)
    return model


def noting_missing(missing):
    """Appends to `missing` what each load of weights by a library leaves out: the module and the names."""
    original = torch.nn.Module.load_state_dict

    def load(module, *args, **named):
        result = original(module, *args, **named)
        missing.append((module, list(result.missing_keys)))
        return result

    return replaced(torch.nn.Module, "load_state_dict", load)
