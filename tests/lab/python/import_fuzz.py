"""Imports random modules, and compares dtrain's steps on them with eager PyTorch.

    import_fuzz.py IMPORT_SCRIPTS WORKER FOLDER --seed N --count N [--keep] [--no-shrink] [--source]

IMPORT_SCRIPTS is the folder of `dtrain import` (mod.rs and python/), WORKER the program dtrain-worker. Each module is the
one of its seed. FOLDER gets `found.jsonl`, a line for each module; modules that it has from the same programs are not run
again. Findings keep their folders, with the smallest module that still has the finding. `--source` prints a module.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict

OWN = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("OMP_NUM_THREADS") != "1":
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})

import import_script
from fuzz import grammar
from fuzz import views, state, layers, risky  # noqa: F401 (they register productions)

BATCH, TRIES = 20, 40
LIMIT_S = 600
# How the import says that PyTorch itself cannot train a module.
EAGER = "forward fails|backward of the model fails"
# The import's warning if a batch of one sample is refused, by mode.
SINGLE = {"train": "micro-batches need at least 2 samples", "evaluate": "batches of an evaluation need at least 2 samples"}
# A verdict that is a finding.
WRONG = ("different", "crashed", "unexplained")


class Fuzzer:
    def __init__(self, scripts, worker, folder):
        self.space, self.worker, self.folder = import_script.load(scripts), worker, folder
        # A process for each model would import torch's parts again, and its errors are wanted as exceptions.
        self.space["in_child"] = lambda work, request, folder: work()
        global reference, torch
        import torch
        from fuzz import reference
        self.space["torch"].set_num_threads(1)
        self.tries = 0

    def request(self, file, output):
        """Returns the request that the launcher makes for FILE.py:make; other flags are absent."""
        flags = {"source": f"{file}:make", "output": output, "inputs": [], "library": [], "seed": 0, "pretrained": False, "traceback": False,
                 "args": {}, "check_with": {}, "dynamic": [], "worker": self.worker}
        return defaultdict(lambda: None, flags)

    def prepare(self, made, folder):
        """Imports a module and writes its check. Returns what is known of it."""
        os.makedirs(folder)
        # The import puts the module into sys.modules by its name, and inspect reads the file.
        name = "module_" + re.sub(r"\W", "_", os.path.basename(folder))
        file, output = os.path.join(folder, name + ".py"), os.path.join(folder, "model.pt2")
        with open(file, "w") as source:
            source.write(made.source)
        found = {"verdict": None, "features": made.features}
        path, began, said = list(sys.path), time.monotonic(), io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                found["summary"] = self.space["convert"](self.request(file, output), output)
        except self.space["Failure"] as error:
            found["sentence"] = " ".join(str(error).split())
        except Exception as error:
            found.update(verdict="crashed", sentence=f"the import raises {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        sys.path[:] = path
        found["import_s"] = round(time.monotonic() - began, 2)
        if found["verdict"]:
            return found
        if "sentence" in found:
            known = any(re.search(reason, found["sentence"]) for reason in made.reasons)
            found["verdict"] = "refused" if known else "unexplained"
            if re.search(EAGER, found["sentence"]) and not reference.trains(self.maker(file, name)):
                found["verdict"] = "untrainable"
            return found
        try:
            several = {mode for mode, words in SINGLE.items() if words in said.getvalue()}
            make = self.maker(file, name)
            # PyTorch refuses some too.
            found["single_refused"] = [mode for mode in several if reference.takes_one(make, mode)]
            cases = reference.cases_of(made.amp, several)
            found["left_out"] = reference.write_check(folder, make, self.space, cases)
        except Exception as error:
            found.update(verdict="crashed", sentence=f"the reference raises {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        found["reference_s"] = round(time.monotonic() - began - found["import_s"], 2)
        return found

    def maker(self, file, name):
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

        def make():
            random.seed(0)
            torch.manual_seed(0)
            return module.make()

        return make

    def check(self, folders):
        """Returns the worker's answers by folder; a worker that dies is started again after the folder that ended it."""
        answers, left = {}, list(folders)
        while left:
            job = json.dumps({"job": "check", "folders": left})
            try:
                done = subprocess.run([self.worker, "check", "--job", job], capture_output=True, text=True, timeout=LIMIT_S, errors="replace")
                lines, code, error = done.stdout, done.returncode, done.stderr
            except subprocess.TimeoutExpired as late:
                lines, code, error = (late.stdout or b"").decode(errors="replace"), -9, f"no answer in {LIMIT_S} s"
            new = {}
            for line in lines.splitlines():
                with contextlib.suppress(ValueError):
                    answer = json.loads(line)
                    new[answer["folder"]] = answer
            answers.update(new)
            left = [folder for folder in left if folder not in answers]
            if code == 0 and left and not new:
                raise RuntimeError(f"dtrain-worker gives no answer for {left[0]}: {lines[:500]} {error[:500]}")
            if code != 0:
                # After the last answer, the end itself has failed.
                ended = left.pop(0) if left else folders[-1]
                answers[ended] = {"died": f"the worker ended with {code}: {' '.join(error.split())[-500:]}"}
        return answers

    def judge(self, made, found, answer):
        """Sets the verdict from the worker's answer."""
        if "died" in answer or answer.get("error"):
            sentence = answer.get("died") or answer["error"]
            known = "died" not in answer and any(re.search(reason, sentence) for reason in made.reasons)
            found.update(verdict="refused" if known else "crashed" if "died" in answer else "unexplained", sentence=sentence)
            return
        # The import has run PyTorch in float32, and named the batches that it refuses.
        missed = [(name, why) for name, why in found["left_out"].items() if "bf16" not in name and why != reference.NOT_FINITE]
        if missed or not answer["cases"]:
            name, why = (missed or list(found["left_out"].items()))[0]
            found.update(verdict="unexplained", sentence=f"the reference cannot run {name}: {why}")
            return
        cases = {case["name"]: case for case in reference.CASES}
        found["recomputed"] = max((case["recomputed"] for case in answer["cases"]), default=0)
        found["largest"] = max((case.get("largest") or 0.0 for case in answer["cases"]), default=0.0)
        wrong, warned, refused = [], [], []
        for case in answer["cases"]:
            error = case.get("error")
            if not error:
                continue
            parts = cases[case["name"]].get("steps", [])
            difference = re.search(r"differs by|instead of|computes no|computes none", error)
            if not difference and any(len(step) > 1 for step in parts) and any(re.search(reason, error) for reason in made.state):
                warned.append(case)
            elif not difference and any(re.search(reason, error) for reason in made.reasons):
                refused.append(case)
            else:
                wrong.append((case, bool(difference)))
        if wrong:
            # One sentence for all cases is the load's.
            verdict = "different" if any(difference for _, difference in wrong) else "unexplained"
            found.update(verdict=verdict, sentence=wrong[0][0]["error"], cases=[case["name"] for case, _ in wrong])
        elif refused and len(refused) == len(answer["cases"]):
            found.update(verdict="refused", sentence=refused[0]["error"])
        elif found["single_refused"] and not any(re.search(reason, SINGLE["train"]) for reason in made.reasons):
            found.update(verdict="unexplained", sentence="the import refuses batches of one sample")
        elif warned or refused:
            found.update(verdict="warned", sentence=(warned + refused)[0]["error"], cases=[case["name"] for case in warned + refused])
        else:
            found["verdict"] = "equal"

    def run(self, modules):
        """Yields what is found of modules by name: name, module, finding."""
        all_found, folders = {}, {}
        for name, made in modules.items():
            folder = os.path.join(self.folder, str(name))
            shutil.rmtree(folder, ignore_errors=True)
            all_found[name] = self.prepare(made, folder)
            if all_found[name]["verdict"] is None:
                folders[folder] = name
        answers = self.check(list(folders))
        for folder, name in folders.items():
            self.judge(modules[name], all_found[name], answers[folder])
        return all_found

    def shrink(self, name, made, found):
        """Returns a smaller module with the same verdict, by dropping items one by one."""
        index, changed = 0, False
        for attempt in range(TRIES):
            options = list(grammar.smaller(made.spec))
            if index >= len(options):
                if not changed:
                    break
                index, changed = 0, False
                continue
            key = f"{name}-smaller-{attempt}"
            smaller = grammar.build(options[index])
            other = self.run({key: smaller})[key]
            shutil.rmtree(os.path.join(self.folder, key), ignore_errors=True)
            if other["verdict"] == found["verdict"] and kind(other) == kind(found):
                made, found, changed = smaller, other, True
            else:
                index += 1
        return made, found


def kind(found):
    """Returns the sentence without numbers and names."""
    return re.sub(r"`[^`]*`|[\d.e+-]+", "", found.get("sentence", ""))[:60].split(":")[0]


def fingerprint(scripts, worker):
    """Returns a text that changes with the grammar, the import, the worker and torch, which the fuzzer has imported."""
    state = hashlib.sha256(torch.__version__.encode())
    sources = [os.path.join(folder, file) for top in (os.path.join(OWN, "fuzz"), scripts) for folder, _, files in os.walk(top) for file in files if file.endswith((".py", ".rs"))]
    for path in [*sorted(sources), __file__, import_script.__file__, worker]:
        with open(path, "rb") as file:
            state.update(file.read())
    return state.hexdigest()[:16]


def main():
    words = sys.argv[1:]
    value = lambda flag, default: int(words[words.index(flag) + 1]) if flag in words else default
    first, count = value("--seed", 0), value("--count", 500)
    if "--source" in words:
        print(grammar.generate(first).source)
        return
    scripts, worker, folder = (os.path.abspath(word) for word in words[:3])
    os.makedirs(folder, exist_ok=True)
    keep, fuzzer = "--keep" in words, Fuzzer(scripts, worker, folder)
    lines, mark = os.path.join(folder, "found.jsonl"), fingerprint(scripts, worker)
    last = {}
    if os.path.exists(lines):
        with open(lines) as file:
            last = {found["seed"]: found["programs"] for found in map(json.loads, file)}
    finished = {seed for seed, programs in last.items() if programs == mark}
    todo = [seed for seed in range(first, first + count) if keep or seed not in finished]
    for begin in range(0, len(todo), BATCH):
        modules = {seed: grammar.generate(seed) for seed in todo[begin : begin + BATCH]}
        for seed, found in fuzzer.run(modules).items():
            own = os.path.join(folder, str(seed))
            found.update(seed=seed, programs=mark)
            if found["verdict"] in WRONG and "--no-shrink" not in words:
                made, small = fuzzer.shrink(seed, modules[seed], found)
                found["smallest"] = {"features": made.features, "sentence": small.get("sentence")}
                with open(os.path.join(own, "smallest.py"), "w") as out:
                    out.write(made.source)
            elif not keep and found["verdict"] not in WRONG:
                shutil.rmtree(own)
            found.pop("summary", None)
            with open(lines, "a") as out:
                out.write(json.dumps(found) + "\n")
            print(f"{seed}: {found['verdict']} {found.get('sentence', '')[:300]}", file=sys.stderr, flush=True)


main()
