"""The comparison by the trainer, and what it found."""


def ask_trainer(worker, folder):
    """Has the trainer run the cases. Returns its answers by name."""
    job = json.dumps({"job": "check", "folders": [folder]})
    command = [worker, "check", "--job", job]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=lambda: die_with_parent(signal.SIGKILL))
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise Failure(
            f"the trainer was killed by {name} while it checked the program; if this was SIGKILL, the memory may be too "
            "small: use a larger machine, or compare a smaller model by --check-with"
        )
    said = done.stderr.strip().splitlines()
    if done.returncode:
        panicked = [line for line in said if "panicked at" in line]
        why = (panicked or said or [f"exit code {done.returncode}"])[-1].removeprefix("error: ")
        raise Failure(f"the trainer cannot check the program: {why}")
    answer = json.loads(done.stdout)
    if answer["error"]:
        raise Failure(f"the trainer cannot check the program: {answer['error']}")
    return {case["name"]: case for case in answer["cases"]}


class Verdict:
    """The results of the comparison: the smallest batches, and the largest difference."""

    def __init__(self, facts, answers):
        self.batches, self.left_out = facts["batches"], facts["left_out"]
        self.smallest, self.why, self.largest = {"train": 1, "evaluate": 1}, {}, 0.0
        self.by_micro_batch = []
        for mode, key in (("training", "train"), ("evaluation", "evaluate")):
            if mode in facts["refused"]:
                self.refuse_one(key, facts["refused"][mode])
            for case in (case for case in facts["cases"] if case["name"].startswith(mode)):
                answer = answers[case["name"]]
                self.by_micro_batch = self.by_micro_batch or answer["by_micro_batch"]
                if not answer["error"]:
                    self.largest = max(self.largest, answer["largest"])
                elif case["batch"] == 1:
                    self.refuse_one(key, answer["error"])
                elif "differs by" in answer["error"]:
                    raise differs(answer["of"], case["name"] + (f": by {answer['largest']:.1e} of its size" if answer["largest"] < 1e300 else ""), facts["lost"])
                elif refused := re.match(r".+?\.(partial|pt2): (.*)", answer["error"], re.DOTALL):
                    # The trainer's reason begins with the name that the file has during the check.
                    raise Failure(refused.group(2))
                else:
                    # A gradient that only one of both computes.
                    cause = f": {facts['lost'] or f'{LOST}; {LOST_REMEDY}'}" if "computes no" in answer["error"] else ""
                    raise Failure(f"the exported program is not the model ({case['name']}): {answer['error']}{cause}")

    def refuse_one(self, key, why):
        self.smallest[key], self.why[key] = 2, why
        if key == "train":
            self.batches = [batch for batch in self.batches if batch > 1]

    def notes(self, request):
        """Returns what the file says of the check."""
        checked = {"batches": self.batches, "largest": self.largest, "with": request["check_with"]}
        return {"smallest": self.smallest, "checked": checked}

    def warnings(self):
        words = {"train": "micro-batches", "evaluate": "batches of an evaluation"}
        # An order of samples has another warning.
        draws = [draw for draw in self.by_micro_batch if not draw.startswith(("randperm", "randint"))]
        more = f" and {len(draws) - 3} more" if len(draws) > 3 else ""
        named = f"results depend on the micro-batch: {', '.join(draws[:3])}{more} cannot draw random numbers by sample"
        attention = any(draw.startswith("scaled_dot_product_attention") for draw in draws)
        remedy = "; models of transformers can with --arg attn_implementation=eager" if attention else ""
        return ([named + remedy] if draws else []) + [f"{words[key]} need at least 2 samples, because a single one is refused ({why})" for key, why in self.why.items()]

    def lines(self, changed):
        largest = f"largest difference {self.largest:.1e} of a tensor's size" if self.largest else "equal bit by bit"
        line = f"with PyTorch, at batches of {', '.join(map(str, self.batches))}: {largest}"
        if self.left_out:
            line += f"; not {', '.join(map(str, self.left_out))}, for lack of memory or time"
        lines = [f"  {'checked':<12} {line}"]
        if changed:
            given = ", ".join(f"{key}={value}" for key, value in changed.items())
            lines.append(f"  {'':<12} with {given}, not at full size")
        return lines
