"""Prints what TensorBoard reads from a run directory, as JSON: python3 read_events.py RUN_DIR"""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

ALL = {kind: 0 for kind in ("scalars", "images", "tensors")}
events = EventAccumulator(sys.argv[1], size_guidance=ALL)
events.Reload()
tags = events.Tags()


def number(value):
    """JSON has no NaN."""
    return value if value == value else None


def texts(tag):
    return [[event.step, event.tensor_proto.string_val[0].decode()] for event in events.Tensors(tag)]


def hparams(name):
    tag = f"_hparams_/{name}"
    if tag not in tags["tensors"]:
        return None
    return HParamsPluginData.FromString(events.SummaryMetadata(tag).plugin_data.content)


start, experiment, end = (hparams(name) for name in ("session_start_info", "experiment", "session_end_info"))
settings = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.session_start_info.hparams.items()}
print(
    json.dumps(
        {
            "scalars": {
                tag: [[event.step, number(event.value), event.wall_time] for event in events.Scalars(tag)]
                for tag in tags["scalars"]
            },
            "images": {
                tag: [[event.step, event.width, event.height, len(event.encoded_image_string)] for event in events.Images(tag)]
                for tag in tags["images"]
            },
            "texts": {tag: texts(tag) for tag in tags["tensors"] if not tag.startswith("_hparams_")},
            "settings": settings,
            "compared": [info.name.tag for info in experiment.experiment.metric_infos],
            "status": end and end.session_end_info.status,
        }
    )
)
