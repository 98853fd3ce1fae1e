def main():
    request = json.loads(sys.argv[1])
    check_torch()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        with step("loading the model"):
            model, given = load(request)
        model = model.cpu()
        named = Named(model, named_inputs(model, given))
        with step("exporting the training program"):
            training = named.export(True)
        with step("exporting the evaluation program"):
            evaluation = named.export(False)
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
        partial = request["output"] + ".partial"
        with step("writing"), open(partial, "wb") as file:
            write_archive(file, training, evaluation, about)
        os.rename(partial, request["output"])


def tied(model):
    """Returns groups of names of parameters and buffers that are one tensor."""
    groups = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault((tensor.data_ptr(), tensor.shape, tensor.dtype) if tensor.numel() else name, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


main()
