//! Remedies for files of another format in the place of weights.

use std::path::{Path, PathBuf};

use dtrain_common::content::{Content, shell_word};
use dtrain_common::files::unused;

use super::error::WeightsProblem;

/// The remedy if the path is a file beside the weights.
pub(super) const NAMED: &str =
    "set model.weights to a safetensors file, or to an index of them such as model.safetensors.index.json";

/// Keys under which checkpoints of other trainers keep a `state_dict`.
const KEYS: &str = r#"("state_dict", "model_state_dict", "model_state", "model", "network", "net", "module", "ema", "params")"#;

/// Returns the problem of weights that are a file of another kind.
pub(super) fn foreign(content: Content, path: &Path) -> WeightsProblem {
    let remedy = match content {
        Content::Pickle => "a pickle can run any program: load it in Python if you trust it, and write its tensors with \
                             safetensors.torch.save_file"
            .to_owned(),
        Content::TorchZip | Content::TorchPickle => pickles(&[path.to_owned()], path),
        Content::TorchScript => program(r#"torch.jit.load(sys.argv[1], map_location="cpu").state_dict()"#, path),
        Content::Exported => program("torch.export.load(sys.argv[1]).state_dict", path),
        Content::Npz => converted(
            "import sys, numpy, safetensors.numpy as s; d = numpy.load(sys.argv[1])",
            "{k: numpy.ascontiguousarray(v) for k, v in d.items()}",
            &[path.to_owned()],
            path,
        ),
        Content::WeightIndex | Content::Json => match beside(path) {
            Some(found) => format!("set model.weights to {}", found.display()),
            None => NAMED.to_owned(),
        },
        Content::Zip | Content::SevenZip | Content::Rar => {
            "unpack it into a new folder and set model.weights to the safetensors file in it".to_owned()
        }
        other => other.remedy(path).unwrap_or_else(|| {
            "save the model's state_dict() in PyTorch with safetensors.torch.save_file, under the names of the model".to_owned()
        }),
    };
    WeightsProblem::Foreign(content, remedy)
}

/// Returns the problem of an index whose files are of torch.save.
pub(super) fn shards_of_pickles(index: &Path, files: &[PathBuf]) -> WeightsProblem {
    WeightsProblem::Index(format!("its files are of torch.save; {}", pickles(files, index)))
}

/// Values of the tensors of `d`, each with its own memory, as safetensors requires.
const TENSORS: &str =
    "{k: v.detach().contiguous().clone() for k, v in d.items() if isinstance(v, torch.Tensor)}";

/// Returns the command that converts the tensors of a program, which an expression of Python reads.
fn program(read: &str, path: &Path) -> String {
    let read = format!("import sys, torch, safetensors.torch as s; d = {read}");
    let command = converted(&read, TENSORS, &[path.to_owned()], path);
    format!("reading it can run any program: if you trust it, {command}")
}

/// Returns the command that converts files of torch.save.
fn pickles(files: &[PathBuf], path: &Path) -> String {
    let read = format!(
        "import sys, torch, safetensors.torch as s; d = {{}}; [d.update(torch.load(f, map_location=\"cpu\", weights_only=True)) \
         for f in sys.argv[1:-1]]; d = next((d[k] for k in {KEYS} if isinstance(d.get(k), dict)), d)"
    );
    format!(
        "{}; a file of torch.save(model) holds a whole module, which this command refuses since reading it can run any \
         program: if you trust it, load it in Python and write its state_dict() with safetensors.torch.save_file",
        converted(&read, TENSORS, files, path)
    )
}

/// Returns a command that writes the tensors of files to a new file beside `path`. It never overwrites a file, and if it fails, it
/// leaves none.
fn converted(read: &str, tensors: &str, files: &[PathBuf], path: &Path) -> String {
    let word = |path: &Path| shell_word(&path.to_string_lossy());
    let new = unused(&path.with_extension("safetensors"));
    let files: Vec<_> = files.iter().map(|file| word(file)).collect();
    format!(
        "convert it with `python3 -c '{read}; t = {tensors}; t or sys.exit(\"there is no tensor in it\"); b = s.save(t); \
         open(sys.argv[-1], \"xb\").write(b)' {} {}` and set model.weights to the new file",
        files.join(" "),
        word(&new)
    )
}

/// Returns the weights in the folder of a file.
fn beside(path: &Path) -> Option<PathBuf> {
    let names = ["model.safetensors.index.json", "model.safetensors"];
    names.into_iter().map(|name| path.with_file_name(name)).find(|other| other != path && other.is_file())
}
