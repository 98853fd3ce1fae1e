//! The files of docs/containers, and a training in what stands for a container: other namespaces and another root.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::need::{self, Need};
use dtrain_tests::process::{doctor, expect_exit_code, finish, output_text};
use dtrain_tests::programs::build_folder;
use dtrain_tests::runs::{Run, TINY};

const LIMIT: Duration = Duration::from_secs(600);
const SCRIPT: &str = "docs/containers/build.sh";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns what the build stage of the Dockerfile copies from the repository, without the script's own layer.
fn copied() -> BTreeSet<String> {
    let text = read("docs/containers/Dockerfile");
    let (build, run) = text.split_once("\nFROM ${RUN_IMAGE}").unwrap();
    assert!(!run.lines().any(|line| line.starts_with("COPY") && !line.contains("--from=build")));
    let words = build.lines().filter_map(|line| line.strip_prefix("COPY ")).flat_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        words[..words.len() - 1].to_vec()
    });
    words.filter(|word| *word != SCRIPT).map(str::to_owned).collect()
}

#[test]
fn image_builds_copy_the_same_existing_parts_of_the_repository() {
    let copied = copied();
    for source in copied.iter().map(String::as_str).chain([SCRIPT]) {
        assert!(root().join(source).exists(), "{source} is missing");
    }
    let ignored = read(".dockerignore");
    let sent = ignored.lines().filter_map(|line| line.strip_prefix('!')).map(str::to_owned);
    assert!(ignored.lines().any(|line| line == "*"));
    assert_eq!(sent.collect::<BTreeSet<_>>(), copied, ".dockerignore");
    let definition = read("docs/containers/dtrain.def");
    let (_, files) = definition.split_once("%files\n").unwrap();
    let files = files.split("\n\n").next().unwrap().lines().map(|line| {
        let (from, to) = line.trim().split_once(' ').unwrap();
        assert_eq!(to, format!("/src/{from}"));
        from.to_owned()
    });
    assert_eq!(files.collect::<BTreeSet<_>>(), copied, "dtrain.def");
    // A crate in another folder would be missing in the images.
    let cargo = read("Cargo.toml");
    let members = cargo.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    for member in members.split(',').map(|line| line.trim().trim_matches('"')).filter(|line| !line.is_empty())
    {
        assert!(copied.contains(member.split('/').next().unwrap()), "{member} is not copied");
    }
}

#[test]
fn image_builds_run_the_same_steps_on_the_same_images() {
    let (docker, apptainer) = (read("docs/containers/Dockerfile"), read("docs/containers/dtrain.def"));
    let steps = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter_map(|line| line.trim_start_matches(['R', 'U', 'N', ' ']).strip_prefix(SCRIPT));
        lines.map(|line| line.replace("\"$SET\"", "SET").replace("{{ SET }}", "SET")).collect()
    };
    assert_eq!(steps(&docker), [" tools", " dtrain SET /opt/dtrain"]);
    assert_eq!(steps(&docker), steps(&apptainer));
    let values = |text: &str, start: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect()
    };
    let images = [values(&docker, "ARG BUILD_IMAGE="), values(&docker, "ARG RUN_IMAGE=")].concat();
    assert_eq!(images, values(&apptainer, "From: "));
    assert!(docker.contains("\nARG SET=cpu\n") && apptainer.contains("\n    SET=cpu\n"));
    // Each image has a cargo that can build dtrain.
    let version = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };
    let image = images[0].split_once("rust:").unwrap().1.split('-').next().unwrap();
    let cargo = read("Cargo.toml");
    let needed = cargo.split_once("rust-version = \"").unwrap().1.split('"').next().unwrap();
    assert!(version(image) >= version(needed), "{image} is older than {needed}");
}

#[test]
fn shellcheck_finds_nothing_in_the_build_script() {
    let checked = need::output(Need::Shellcheck, Command::new("shellcheck").arg(root().join(SCRIPT)));
    let Ok(done) = checked else { return };
    assert!(done.status.success(), "{}", output_text(&done));
}

/// Runs a command in the folder `$1` as in a container: as process 1, as a user without a name or a home, with the
/// system's libraries, 1 MiB in /dev/shm, and no variables but an image's. Needs namespaces in which it may mount.
const CONTAINER: &str = r#"
    root=$1; shift
    for folder in usr lib lib64 dev; do
        [ -e "/$folder" ] || continue
        mkdir -p "$root/$folder" && mount --rbind "/$folder" "$root/$folder" || exit 90
    done
    mkdir -p "$root/proc" "$root/tmp"
    mount -t proc proc "$root/proc" && mount -t tmpfs -o size=1m,mode=1777 shm "$root/dev/shm" || exit 90
    exec chroot "$root" /usr/bin/env -i PATH=/opt/dtrain/bin:/usr/bin OMP_NUM_THREADS=1 "$@""#;

fn in_container(root: &Path, command: &[&str]) -> Command {
    let mut unshare = Command::new("unshare");
    // The names of the user and the group do not exist in the container either.
    unshare.args(["--user", "--map-user=12345", "--map-group=12345", "--keep-caps", "--mount"]);
    unshare.args(["--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh"]).arg(root);
    // As the user of a container, without capabilities.
    unshare.args(["setpriv", "--inh-caps=-all", "--ambient-caps=-all"]).args(command);
    unshare
}

#[test]
fn an_image_trains_as_any_user_as_process_1_with_little_in_dev_shm() {
    let folder = tempfile::tempdir().unwrap();
    let mut inside = in_container(folder.path(), &["true"]);
    let Ok(done) = need::output(Need::Mount, &mut inside) else { return };
    let works = done.status.success().then_some(()).ok_or_else(|| output_text(&done));
    let Ok(()) = need::require(Need::Mount, works) else { return };
    let mut install = Command::new(root().join(SCRIPT));
    install
        .current_dir(root())
        .args(["install", "cpu"])
        .arg(build_folder())
        .arg(folder.path().join("opt/dtrain"));
    let installed = expect_exit_code(&finish(&mut install, LIMIT), 0);
    assert!(installed.contains(&format!("{}/opt/dtrain/bin", folder.path().display())), "{installed}");
    fs::create_dir(folder.path().join("work")).unwrap();
    let recipe = TINY.replace("width = 16", "width = 384");
    fs::write(folder.path().join("work/recipe.toml"), recipe).unwrap();

    // 7 MB of gradients: without `shared`, a failure to share memory would be a warning.
    let train = "cd /work && DTRAIN_TRANSPORT=shared exec dtrain launch --nproc 2 --run-dir run recipe.toml";
    let text = expect_exit_code(&finish(&mut in_container(folder.path(), &["sh", "-c", train]), LIMIT), 0);
    let run = Run(dtrain_common::run_dir::RunDir::new(folder.path().join("work/run")));
    assert_eq!((run.result().nproc, run.result().steps), (Some(2), Some(6)), "{text}");
    assert_eq!(run.per_step("loss").len(), 6);

    let command = ["sh", "-c", "cd /work && exec dtrain doctor"];
    let text = output_text(&doctor(|| finish(&mut in_container(folder.path(), &command), LIMIT)));
    assert!(text.contains("FAIL  shared memory  1.00 MiB of 1.00 MiB free in /dev/shm"), "{text}");
    assert!(text.contains("--shm-size=8g"), "{text}");
    assert!(text.contains("in /opt/dtrain/bin/../libtorch/torch/lib"), "{text}");
}
