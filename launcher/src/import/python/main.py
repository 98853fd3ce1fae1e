def main():
    request = json.loads(sys.argv[1])
    partial = request["output"] + ".partial"
    try:
        text = convert(request, partial)
    except KeyboardInterrupt:
        remove(partial)
        sys.exit(130)
    except BaseException as error:
        remove(partial)
        if request["traceback"]:
            traceback.print_exc()
        if not isinstance(error, Failure):
            error = f"{explain(error) if isinstance(error, Exception) else repr(error)}{at(error)}; --traceback shows more"
        print(f"dtrain: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    # The file is written, whether or not the summary is read.
    with contextlib.suppress(BrokenPipeError):
        print(text, end="", flush=True)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def convert(request, partial):
    """Writes the file. Returns the summary."""
    with contextlib.redirect_stdout(sys.stderr):
        check_torch()
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        quiet()
        load_libraries(request["library"])
        with step("loading the model"):
            model, given = load(request)
        model = model.cpu()
        check_module(model)
        named = Named(model, named_inputs(model, given))
        checks = Checks(named)
        with step("running the model"):
            outputs, gradients = checks.run_model()
        with step("exporting the training program"):
            training = checks.export(True)
        with step("checking the training program"):
            checks.compare(training, outputs, gradients)
            checks.state.restore()
        with step("exporting the evaluation program"):
            expected = check_evaluation(named, outputs, checks.run_evaluation())
            evaluation = checks.export(False)
            checks.compare(evaluation, expected, None)
            checks.state.restore()
        about = {
            "format": 1,
            "source": request["source"],
            "torch": torch.__version__.split("+")[0],
            "inputs": named.inputs.names,
            "outputs": named.names[True],
            "evaluation_outputs": named.names[False],
            "tied": tied(model),
            "state_dict": list(model.state_dict()),
            "pretrained": request["pretrained"],
        }
        with step("writing the file"):
            write(partial, request["output"], training, evaluation, about)
    pretrained = request["pretrained"] if request["source"].startswith(("timm:", "torchvision:", "hf:")) else None
    return summary(request, checks, training, evaluation, outputs, gradients, pretrained)


def write(partial, output, training, evaluation, about):
    try:
        with open(partial, "wb") as file:
            write_archive(file, training, evaluation, about)
        os.replace(partial, output)
    except OSError as error:
        raise Failure(f"cannot write {output}: {error.strerror or error}") from error


def remove(path):
    with contextlib.suppress(OSError):
        os.remove(path)


def tied(model):
    """Returns groups of names of parameters and buffers that are one tensor."""
    groups = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype) if tensor.numel() else name
        groups.setdefault(key, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


main()
