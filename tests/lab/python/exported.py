"""Compares exported models with PyTorch: outputs, loss, gradients, buffers, and the time of a step.

    exported.py IMPORT_SCRIPTS PROGRAM MODELS.toml FOLDER [--only NAME] [--speed] [--write]

IMPORT_SCRIPTS is the folder of `dtrain import` (mod.rs and python/), PROGRAM the example `exported` of dtrain-models. Each
model is imported, and runs at another batch size than in the export, with one thread and one seed: eagerly in this
process, and as the exported program in the other. Prints one line of JSON for each model. With --write, only the
programs and their inputs are written, as NAME.pt2 and NAME.inputs.safetensors.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import tomllib

import import_script
from safetensors.torch import load_file, save_file

# One thread. The C library keeps freed memory in both processes: whether it returns pages depends on their history.
SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
if not SETTINGS.items() <= os.environ.items():
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})

WARM, STEPS = 3, 15
DEFAULTS = {"classes": None, "image_size": None, "channels": None, "inputs": [], "pretrained": False, "library": [], "seed": 0, "head": None,
            "args": {}, "weights": None, "traceback": True}


def name_of(source):
    """Returns the name of a model to which its list gives none."""
    kind, _, name = source.partition(":")
    return f"{kind}_{name}" if kind in ("torchvision", "hf") else name


def request_of(model, folder):
    """Returns the request that `dtrain import` makes of a model's source and flags."""
    request = dict(DEFAULTS)
    kind, _, name = model["source"].partition(":")
    own = os.path.dirname(os.path.abspath(__file__))
    if kind == "hf":
        name = os.path.join(folder, "configurations", name)
    request["source"] = f"{os.path.join(own, kind) if kind.endswith('.py') else kind}:{name}"
    flags = model.get("flags", [])
    for flag, value in zip(flags[::2], flags[1::2]):
        key = flag.lstrip("-").replace("-", "_")
        if key == "image_size":
            request[key] = [int(side) for side in value.split("x")] if "x" in value else int(value)
        elif key == "inputs":
            request[key] = [parse_input(spec) for spec in value.split(",")]
        else:
            request[key] = int(value) if value.isdigit() else value
    return request


def parse_input(spec):
    name, _, rest = spec.partition("=")
    dtype, _, shape = rest.rpartition(":")
    return {"name": name, "dtype": dtype or "float32", "shape": [int(side) for side in shape.split("x")]}


def mean_squares(torch, outputs):
    wide = [value.float() if value.dtype == torch.bfloat16 else value for value in outputs if value.is_floating_point()]
    terms = [value.square().mean() for value in wide]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def write(space, model, folder):
    """Writes a model's program and its inputs. Returns the files, the model, its inputs and what is found out of it."""
    torch = space["torch"]
    torch.set_num_threads(1)
    request = request_of(model, folder)
    file = os.path.join(folder, model["name"] + ".pt2")
    request["output"] = file
    module, given = space["load"](request)
    module = module.cpu()
    named = space["Named"](module, space["named_inputs"](module, given))
    state = space["State"](module)
    began = time.monotonic()
    module.train()
    space["seed_all"]()
    first = named.inputs.of_batch(2)
    named(first)
    state.restore()
    training = named.export(True)
    state.restore()
    evaluation = named.export(False)
    state.restore()
    names = named.names
    about = {"inputs": named.inputs.names, "outputs": names[True], "evaluation_outputs": names[False]}
    with open(file, "wb") as out:
        space["write_archive"](out, training, evaluation, about)
    seconds = time.monotonic() - began
    inputs = named.inputs.of_batch(model.get("batch", 4))
    given = os.path.join(folder, model["name"] + ".inputs.safetensors")
    save_file({name: value.contiguous() for name, value in zip(named.inputs.names, inputs)}, given)
    nodes = list(space["nodes_of"](training))
    found = {"name": model["name"], "nodes": len(nodes), "operations": len({str(node.target) for node in nodes}),
             "parameters": sum(parameter.numel() for parameter in module.parameters()), "import_s": round(seconds, 1)}
    return (file, given), (named, state), inputs, found


def compare(space, model, program, folder, speed):
    torch = space["torch"]
    (file, given), (named, state), inputs, found = write(space, model, folder)
    module, names, nodes = named.module, named.names, found["nodes"]

    def call(*words):
        done = subprocess.run([program, file, given, *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError((done.stderr or done.stdout).strip()[:2000])
        return json.loads(done.stdout)

    def run(*flags):
        result = os.path.join(folder, model["name"] + ".result.safetensors")
        told = call(result, "--seed", "7", *flags)
        return load_file(result), told

    def memory(*flags):
        return call(os.devnull, "--memory", *flags)

    def eager(accumulates=False, bf16=False):
        torch.manual_seed(7)
        module.zero_grad(set_to_none=not accumulates)
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = list(named(inputs).values())
        loss = mean_squares(torch, outputs)
        loss.backward()
        return outputs, loss, time.perf_counter() - began

    def equal(theirs, ours):
        same = theirs.shape == ours.shape and space["identical"](theirs.detach(), ours)
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        scale = max([theirs.detach().abs().max().item(), *(gradient.abs().max().item() for gradient in gradients)]) if not same else 1.0
        return 0.0 if same else float((theirs.detach().double() - ours.double()).abs().max()) / max(scale, 1e-30)

    def check(ours, outputs, loss, kind):
        """Keeps `equal`, or the largest difference relative to the largest value of the same kind of tensor."""
        worst = {}
        for name, value in zip(names[True], outputs):
            worst["output." + name] = equal(value, ours["output." + name])
        worst["loss"] = equal(loss, ours["loss"])
        seen = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            known = seen.setdefault(id(parameter), name)
            ours_of = ours.get("grad." + known, ours.get("grad." + name))
            if (parameter.grad is None) != (ours_of is None):
                worst["grad." + name] = float("inf") if known == name else 0.0
            elif parameter.grad is not None:
                worst["grad." + name] = equal(parameter.grad, ours_of)
        for name, buffer in module.named_buffers():
            if "buffer." + name in ours:
                worst["buffer." + name] = equal(buffer, ours["buffer." + name])
        different = {name: value for name, value in worst.items() if value != 0.0}
        found[kind] = "equal" if not different else max(different.values())
        if different:
            found[kind + "_of"] = sorted(different, key=different.get)[-3:]

    def interleaved():
        """Returns the seconds of steps, eager and exported in turn, after some steps of each."""
        with subprocess.Popen([program, file, given, os.devnull, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as served:
            served.stdout.readline()
            times = []
            for _ in range(WARM + STEPS):
                theirs = eager(accumulates=True)[2]
                print(file=served.stdin, flush=True)
                times.append((theirs, float(served.stdout.readline())))
            served.stdin.close()
        return times[WARM:]

    module.train()
    ours, told = run()
    outputs, loss, _ = eager()
    check(ours, outputs, loss, "train")
    found["segments"], found["draws"] = told["segments"], told["draws"]
    state.restore()
    if told["segments"]:
        ours, _ = run("--recompute", "100000")
        outputs, loss, _ = eager()
        check(ours, outputs, loss, "recompute")
        state.restore()
    ours, _ = run("--bf16")
    outputs, loss, _ = eager(bf16=True)
    check(ours, outputs, loss, "bf16")
    state.restore()
    plain = memory()
    found["memory_mib"], found["prediction_error"] = plain["measured"] / 2**20, plain["predicted"] / plain["measured"] - 1
    if told["segments"]:
        again = memory("--recompute", "100000")
        found["recompute_error"] = again["predicted"] / again["measured"] - 1
        found["recompute_memory"] = again["measured"] / plain["measured"]
    module.eval()
    ours, _ = run("--evaluate")
    with torch.no_grad():
        results = [equal(value, ours["output." + name]) for name, value in zip(names[False], named(inputs).values())]
    found["evaluate"] = "equal" if not any(results) else max(results)
    module.train()
    if speed:
        times = interleaved()
        found["eager_s"], found["dtrain_s"] = (round(statistics.median(of), 6) for of in zip(*times))
        found["speed"] = round(statistics.median(theirs / own for theirs, own in times), 3)
        if model["name"] == "chain":
            found.update(call(os.devnull, "--calls", str(nodes)))
    return found


def main():
    words = sys.argv[1:]
    only = words[words.index("--only") + 1] if "--only" in words else None
    scripts_folder, program, models, folder = words[:4]
    os.makedirs(folder, exist_ok=True)
    space = import_script.load(scripts_folder)
    space["warnings"].simplefilter("ignore")
    space["quiet"]()
    maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hf_models.py")
    subprocess.run([sys.executable, maker, os.path.join(folder, "configurations")], check=False)
    with open(models, "rb") as file:
        models = tomllib.load(file)["model"]
    for model in models:
        model.setdefault("name", name_of(model["source"]))
        if only and only not in model["name"]:
            continue
        try:
            if "--write" in words:
                found = write(space, model, folder)[-1]
            else:
                found = compare(space, model, program, folder, "--speed" in words)
        except Exception as error:
            found = {"name": model["name"], "error": " ".join(str(error).split())[:1500]}
        with open(os.path.join(folder, "found.jsonl"), "a") as out:
            out.write(json.dumps(found) + "\n")
        told = {key: value for key, value in found.items() if key in ("train", "evaluate", "recompute", "bf16", "speed", "error")}
        print(found["name"], told, file=sys.stderr, flush=True)


main()
