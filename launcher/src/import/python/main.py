def main():
    request = json.loads(sys.argv[1])
    # The user's code may change the folder.
    partial = os.path.abspath(request["output"]) + ".partial"
    request["library"] = [os.path.abspath(file) for file in request["library"]]
    die_with_parent(signal.SIGINT)
    try:
        text = convert(request, partial)
    except BaseException as error:
        remove(partial)
        sys.exit(report(error, request))
    # The file is written, whether or not the summary is read.
    with contextlib.suppress(BrokenPipeError):
        print(text, end="", flush=True)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error, request):
    """Prints an exception as one line. Returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, ChildEnded):
        return error.code
    if request["traceback"]:
        traceback.print_exc()
    if not isinstance(error, Failure):
        error = f"{explain(error) if isinstance(error, Exception) else repr(error)}{at(error)}; --traceback shows more"
    print(f"dtrain: error: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def convert(request, partial):
    """Writes the file, and has the trainer check it. Returns the summary."""
    folder = partial + ".check"
    remove_folder(folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            os.makedirs(folder)
            made = in_child(lambda: write_all(request, partial, folder), request, folder)
            with step("checking the programs"):
                verdict = Verdict(made, ask_trainer(request["worker"], folder))
            note(partial, verdict.notes(request))
            os.replace(partial, partial.removesuffix(".partial"))
            warn(verdict.warnings())
        lines = [*made["summary"], *verdict.lines(request["check_with"]), "", *made["recipe"]]
        return "\n".join(lines) + "\n"
    except OSError as error:
        raise unwritten(error, request)
    finally:
        remove_folder(folder)


def unwritten(error, request):
    """Returns the error to report: that a file of the import cannot be written, or that of the user's code."""
    output = os.path.abspath(request["output"])
    if error.filename and not os.path.abspath(str(error.filename)).startswith(output):
        return error
    return Failure(f"cannot write {error.filename or request['output']}: {error.strerror or error}")


class ChildEnded(Exception):
    """The child has printed its error."""

    def __init__(self, code):
        self.code = code


def in_child(work, request, folder):
    """Runs `work` in a child process, whose end frees the memory of the model for the trainer. Returns its result."""
    answer = os.path.join(folder, "child.json")
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(signal.SIGKILL)
        return_freed_memory()
        try:
            if os.getppid() != parent:
                os._exit(1)
            # A file, since processes that the model starts may outlive this one, with its pipes.
            told = {"result": work()}
        except OSError as error:
            told = {"code": report(unwritten(error, request), request)}
        except BaseException as error:
            told = {"code": report(error, request)}
        with contextlib.suppress(OSError), open(answer, "w") as file:
            json.dump(told, file)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(0)
    status = None
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if status < 0:
        # The launcher explains the signal.
        remove(folder.removesuffix(".check"))
        remove_folder(folder)
        os.kill(os.getpid(), -status)
    if not os.path.isfile(answer):
        raise Failure(f"the model's code ended Python with code {status}; remove the call of exit")
    with open(answer) as file:
        told = json.load(file)
    if "code" in told:
        raise ChildEnded(told["code"])
    return told["result"]


def die_with_parent(number):
    """Has the kernel send this signal to the present process when its parent ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(number), 0, 0, 0)


def return_freed_memory():
    """Has the C library return each tensor of 1 MiB or more when it is freed: kept ones add up to half of a large model's weights."""
    mmap_threshold = -3
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ and "GLIBC_TUNABLES" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(mmap_threshold, 1 << 20)


def write_all(request, partial, folder):
    """Writes the file and PyTorch's results. Returns what the verdict and the summary need."""
    check_torch()
    warnings.simplefilter("ignore")
    quiet()
    # No export has the fast path of evaluation: it gives zeros at padded positions.
    torch.backends.mha.set_fastpath_enabled(False)
    load_libraries(request["library"])
    with step("loading the model"):
        checks = prepare(request)
    role = request["role"]
    if role:
        check_own(checks, role)
    warn(warnings_of(checks.model))
    smaller = prepare_smaller(request) if request["check_with"] else None
    checks.runs = smaller is None
    probed = prepare_probed(checks, request) if role else None
    check = Check(folder, smaller or probed or checks, role in (None, "loss"))
    threads = torch.get_num_threads()
    with step("running the model"):
        # The trainer computes with one thread, too: the order of sums depends on their number.
        torch.set_num_threads(1)
        check.run()
        torch.set_num_threads(threads)
    if smaller:
        checks.named.renamed = smaller.named.renamed
    training, evaluation = export_both(checks)
    warn(warnings_of_program(training, checks))
    if not role:
        with step("trying mixed precision"):
            warn(warnings_of_precision((training, evaluation)))
    file = partial
    if smaller:
        programs, file = export_both(smaller), check.path("smaller.pt2")
        check_form(checks, smaller, (training, evaluation), programs)
        write(file, request, smaller, *programs)
    write(partial, request, checks, training, evaluation)
    if probed:
        programs, file = export_both(probed), check.path("probed.pt2")
        write(file, request, probed, *programs)
    check.describe(file, request["library"])
    pretrained = request["pretrained"] if request["source"].startswith(("timm:", "torchvision:", "hf:")) else None
    outputs = outputs_of(training, checks.named.names[True])
    lines = summary(request, partial, checks, (training, evaluation), check, outputs, pretrained)
    recipe = own_recipe_lines(request) if role else recipe_lines(request, checks.named.inputs, outputs, norms_of(training), state_of(training))
    return {**check.facts(), "summary": lines, "recipe": recipe}


def prepare(request):
    """Creates the model, and checks what needs no run."""
    model, given = load(request)
    model = model.cpu()
    check_module(model, not request["role"])
    return Checks(Named(model, named_inputs(model, given), request["dynamic"]))


def prepare_smaller(request):
    """Creates the model of --check-with. An argument that has a flag of the command is set as by this flag."""
    flags = {name: flag for flag in ("classes", "image_size", "channels") for name in FLAG_ARGUMENTS[flag]}
    given = {flags[name]: value for name, value in request["check_with"].items() if name in flags}
    args = {name: value for name, value in request["check_with"].items() if name not in flags}
    try:
        return prepare({**request, **given, "weights": None, "args": {**request["args"], **args}})
    except Failure as failure:
        text = str(failure).replace("--arg ", "--check-with ")
        for flag in given:
            text = text.replace(f"--{flag.replace('_', '-')}", f"--check-with {flag}")
        raise Failure(text) from failure


def export_both(checks):
    with step("exporting the training program"):
        training = checks.export(True)
    with step("exporting the evaluation program"):
        evaluation = checks.export(False)
    checks.state.restore()
    return training, evaluation


def write(path, request, checks, training, evaluation):
    named = checks.named
    lines = [] if request["role"] else recipe_lines(request, named.inputs, outputs_of(training, named.names[True]), norms_of(training), state_of(training))
    about = {
        "format": 1,
        "source": request["source"],
        "torch": torch.__version__.split("+")[0],
        "inputs": named.inputs.names,
        "outputs": named.names[True],
        "evaluation_outputs": named.names[False],
        "tied": tied(checks.model),
        "state_dict": list(tensors_in(checks.model)),
        "pretrained": request["pretrained"],
        "args": request["args"],
        "images": request.get("images"),
        "data": settings_of(request, named.inputs),
        "recipe": "\n".join(lines[1:]),
        "without_weights": request["weights"] == "none",
        "guards": {"train": checks.guards[True], "evaluate": checks.guards[False]},
    }
    with step("writing the file"), open(path, "wb") as file:
        write_archive(file, training, evaluation, about)


def warn(sentences):
    for sentence in sentences:
        print(f"dtrain: warning: {sentence}", file=sys.stderr, flush=True)


def remove(path):
    with contextlib.suppress(OSError):
        os.remove(path)


def remove_folder(path):
    shutil.rmtree(path, ignore_errors=True)


def note(path, notes):
    """Adds what the check has found to the file."""
    with zipfile.ZipFile(path, "a") as file:
        prefix = file.namelist()[0].split("/")[0]
        file.writestr(f"{prefix}/extra/check.json", json.dumps(notes))


def tensors_in(model):
    """Returns the tensors of the state_dict, themselves and not copies. Modules may store other things there."""
    return {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}


def tied(model):
    """Returns groups of names of parameters and buffers that are one tensor."""
    groups = {}
    for name, tensor in tensors_in(model).items():
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype) if tensor.numel() else name
        groups.setdefault(key, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


main()
