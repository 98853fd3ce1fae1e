"""How the authors of a model prepare its images, as settings of `[data]`."""

# The defaults of a recipe.
DEFAULTS = {"channels": 3, "image_size": 224, "resize": "crop", "crop_fraction": 1, "interpolation": "bilinear",
            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

# Numbers of PIL's filters.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def timm_images(config):
    """Returns what `timm.data.create_transform` does for the configuration of a model."""
    mode = config.get("crop_mode") or "center"
    return {"mean": config.get("mean"), "std": config.get("std"), "interpolation": config.get("interpolation"),
            "crop": config.get("crop_pct"), "stretch": mode == "squash", "padded": mode == "border"}


def torchvision_images(transforms):
    """Returns what the transforms of weights do."""
    crop, resize = getattr(transforms, "crop_size", None), getattr(transforms, "resize_size", None)
    whole = crop and resize and len(crop) == len(resize) == 1
    return {"mean": getattr(transforms, "mean", None), "std": getattr(transforms, "std", None), "stretch": False,
            "interpolation": getattr(getattr(transforms, "interpolation", None), "value", None),
            "crop": part_of(crop[0], resize[0]) if whole else None}


def hugging_face_images(transformers, source):
    """Returns the settings of a model's image processor; nothing if the model has no such processor."""
    processor = None
    for fast in (False, True):
        # Not every model has one, and not every processor has both forms.
        with contextlib.suppress(Exception):
            processor = processor or transformers.AutoImageProcessor.from_pretrained(source, use_fast=fast)
    if processor is None:
        return {}
    get = lambda name, usual=None: getattr(processor, name, usual)
    images = {"stretch": False, "interpolation": FILTERS.get(get("resample"))}
    size, crop = (dict(get(name) or {}) for name in ("size", "crop_size"))
    shortest, pair = size.get("shortest_edge"), (size.get("height"), size.get("width"))
    if get("crop_pct") and shortest:
        # ConvNeXt crops small images, and stretches others.
        images.update({"crop": get("crop_pct")} if shortest < 384 else {"stretch": True})
    elif not get("do_resize", True):
        images["other"] = "images keep their size"
    elif get("do_center_crop") and shortest and shortest >= crop.get("height", 0) == crop.get("width"):
        images["crop"] = part_of(crop["height"], shortest)
    elif None not in pair and (not get("do_center_crop") or pair == (crop.get("height"), crop.get("width"))):
        images["stretch"] = True
    else:
        images["other"] = f"images are scaled to {size}"
    # dtrain's values are from 0 to 1.
    factor = 255 * get("rescale_factor", 1 / 255) if get("do_rescale", True) else 255
    if get("rescale_offset"):
        images["other"] = "values are moved after they are scaled"
    elif get("do_normalize") and get("image_mean") and get("image_std"):
        images.update({"mean": get("image_mean"), "std": get("image_std")})
    else:
        images.update({"mean": [0.0] * 3, "std": [1.0] * 3})
    if abs(factor - 1) > 1e-6:
        images.update({key: [value / factor for value in images[key]] for key in ("mean", "std") if key in images})
    return images


def part_of(crop, resize):
    """Returns the largest part by which an image is scaled to `resize` before the crop, in the rounding of the trainer."""
    part = crop / resize
    while math.floor(crop / part) < resize:
        part = math.nextafter(part, 0)
    return part


def image_settings(request, channels, height, width):
    """Returns the settings of `[data]` for images of this shape, and in words what they cannot state."""
    images, found, lacking = request.get("images") or {}, {"channels": channels}, []
    crop, interpolation = images.get("crop"), images.get("interpolation")
    if height != width:
        found["resize"] = "none"
    else:
        found["image_size"] = height
        if images.get("stretch"):
            found["resize"] = "stretch"
            if crop and crop < 1:
                found["crop_fraction"] = crop
        elif crop and crop <= 1 and not images.get("padded"):
            found.update({"resize": "crop", "crop_fraction": crop})
        elif crop or images.get("other"):
            lacking.append(images.get("other") or f"the model is evaluated on images scaled to {crop:.4g} of its input, with a border")
        if interpolation in ("bilinear", "bicubic"):
            found["interpolation"] = interpolation
        elif interpolation:
            lacking.append(f"the model is evaluated on images scaled with {interpolation} interpolation")
    for key in ("mean", "std"):
        if images.get(key) and len(images[key]) == channels:
            found[key] = [float(value) for value in images[key]]
    return found, lacking


def settings_of(request, inputs):
    """Returns the settings of `[data]` for the inputs of a model; nothing without images."""
    shapes = [tensor.shape for tensor in inputs.tensors if tensor.dim() == 4 and tensor.is_floating_point()]
    return image_settings(request, *shapes[0][1:])[0] if len(shapes) == 1 else {}
