"""Models of images and texts of transformers. Their forward functions drop padding images and count image tokens by the values of
tensors, which no export can trace. Here every image is a whole one, and each text has the tokens of its own images."""


def is_image_text(transformers, model):
    """Returns whether a model of transformers reads a text with images and writes a text."""
    mapping = getattr(transformers, "AutoModelForImageTextToText", None)
    return mapping is not None and type(model) in mapping._model_mapping.values() and hasattr(model.config, "vision_config")


def image_token(config):
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    raise Failure(f"{type(config).__name__} states no image_token_id; write a FILE.py:FUNCTION that returns the model")


def image_text_inputs(transformers, model, request):
    """Makes the model exportable, and returns examples: an image, and a text with its tokens."""
    config = model.config
    text = config.get_text_config()
    if request["inputs"]:
        given = parse_inputs(request["inputs"])
        if not {"pixel_values", "input_ids"} <= given.keys():
            raise Failure("--inputs: a model of images and texts takes pixel_values and input_ids; give both, or none")
    else:
        size = config.vision_config.image_size
        size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        given = image_inputs(model, request, size, getattr(config.vision_config, "num_channels", 3), "pixel_values")
        longest = getattr(text, "max_position_embeddings", None) or LONGEST_TEXT
        given["input_ids"] = example("input_ids", torch.int64, (min(longest, LONGEST_TEXT),))
    inner, mode = getattr(model, "model", model), model.training
    own = inner.inputs_merger if hasattr(inner, "inputs_merger") else None
    count = image_tokens(model, inner, given["pixel_values"][:1])
    ids, token = given["input_ids"], image_token(config)
    if ids.shape[1] <= count:
        raise Failure(
            f"an image is {count} tokens, and a text has {ids.shape[1]}; give a longer one by --inputs, such as --inputs "
            f"pixel_values={'x'.join(map(str, given['pixel_values'].shape[1:]))},input_ids=int64:{count + 64}"
        )
    # Ordinary tokens, and those of the images at the start.
    others = [number for number in range(4) if number != token][:2]
    ids = torch.where(ids == 0, others[0], others[1])
    ids[:, 1:count + 1] = token
    given["input_ids"] = ids
    check = {name: value[:2] for name, value in given.items()}
    model.eval()
    with torch.no_grad():
        pixels = check["pixel_values"]
        # The library takes a list of images for each text.
        before = model(**{**check, "pixel_values": pixels.unsqueeze(1) if own and pixels.dim() == 4 else pixels}).logits
        replace_choices(model, inner)
        after = model(**check).logits
    model.train(mode)
    if not torch.allclose(before, after, rtol=1e-4, atol=1e-5):
        raise Failure(f"{type(model).__name__} computes something else for whole images than dtrain knows; write a FILE.py:FUNCTION")
    request["image_tokens"] = token, count
    return given


def image_tokens(model, inner, pixels):
    """Returns the number of tokens of a text's images."""
    with torch.no_grad():
        if hasattr(inner, "inputs_merger"):
            features = inner.get_image_features(pixels.unsqueeze(1) if pixels.dim() == 4 else pixels)
        else:
            features = inner.get_image_features(pixel_values=pixels)
    features = features if isinstance(features, (list, tuple)) else [features]
    return sum(part.numel() // part.shape[-1] for part in features)


def replace_choices(model, inner):
    """Replaces what chooses by values with the same for whole images."""
    if hasattr(inner, "inputs_merger"):
        if not all(hasattr(inner, part) for part in ("vision_model", "connector")):
            raise Failure(f"{type(inner).__name__} is of another form than SmolVLM and Idefics3; write a FILE.py:FUNCTION")
        inner.get_image_features = types.MethodType(whole_image_features, inner)
        inner.inputs_merger = types.MethodType(merged_inputs, inner)
    elif hasattr(inner, "get_placeholder_mask"):
        inner.get_placeholder_mask = types.MethodType(placeholder_mask, inner)
        # The file of a LLaVA makes a list of the images' features, only to join it.
        sys.modules[type(inner).__module__].list = joined_list


def joined_list(values):
    """Returns a list whose parts, joined, are those of `list(values)`."""
    is_features = isinstance(values, torch.Tensor) and values.dim() == 3
    return [values.flatten(0, 1)] if is_features else [*values]


def whole_image_features(self, pixel_values, pixel_attention_mask=None):
    """Returns the features of N x C x H x W or N x L x C x H x W images."""
    if pixel_attention_mask is not None:
        raise Failure("pixel_attention_mask: images are whole; leave out this input")
    images = pixel_values.unsqueeze(1) if pixel_values.dim() == 4 else pixel_values
    images = images.flatten(0, 1)
    vision = self.vision_model
    embeddings = vision.embeddings
    patches = embeddings.patch_embedding(images)
    # The positions of a grid of this size among those of the largest image.
    side = embeddings.num_patches_per_side
    boundaries = torch.arange(1 / side, 1.0, 1 / side, device=images.device)
    rows, columns = (
        torch.bucketize(torch.arange(count, device=images.device, dtype=images.dtype) / count * (1 - 1e-6), boundaries, right=True)
        for count in patches.shape[2:]
    )
    positions = (rows[:, None] * side + columns).flatten()
    hidden = patches.flatten(2).transpose(1, 2) + embeddings.position_embedding(positions)
    hidden = vision.encoder(inputs_embeds=hidden, attention_mask=None).last_hidden_state
    return self.connector(vision.post_layernorm(hidden))


def merged_inputs(self, input_ids, inputs_embeds, image_hidden_states):
    """Puts the features of a text's images in place of its image tokens."""
    features = image_hidden_states.reshape(inputs_embeds.shape[0], -1, image_hidden_states.shape[-1])
    is_image = input_ids == image_token(self.config)
    place = (is_image.cumsum(-1) - 1).clamp(0, features.shape[1] - 1)
    placed = features.gather(1, place.unsqueeze(-1).expand(-1, -1, features.shape[-1]))
    return torch.where(is_image.unsqueeze(-1), placed, inputs_embeds)


def placeholder_mask(self, input_ids, inputs_embeds, image_features, **_):
    """Returns where image tokens stand; the scatter after it compares their number."""
    return (input_ids == image_token(self.config)).unsqueeze(-1).expand_as(inputs_embeds)
