//! libtorch as the trainer loads it, and the NCCL beside it. Neither is loaded into the launcher.

use super::gpus::Gpus;
use super::row::Row;
use crate::plan::gpu_check::LIBTORCH_CUDA;
use crate::trainer::{find_worker, read_answer, version_of};
use dtrain_agent::io::process::whole_output;
use dtrain_common::gpu::oldest_driver;
use dtrain_common::installation;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const NCCL: &str = "libnccl.so.2";

/// libtorch, as the trainer program found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Libtorch {
    pub(super) version: String,
    folder: PathBuf,
    /// The version of CUDA; `None` for a CPU build.
    cuda: Option<String>,
    nccl: Option<PathBuf>,
    trainer: PathBuf,
}

impl Libtorch {
    fn cuda_command(&self) -> String {
        installation::install_cuda(&self.trainer)
    }
}

/// Starts the trainer to ask for its libtorch.
pub(super) fn check(patience: Duration) -> (Vec<Row>, Option<Libtorch>) {
    let worker = match find_worker() {
        Ok(worker) => worker,
        Err(error) => {
            let error = format!("{error:#}");
            // The remedy of the row has the rest.
            return (vec![missing(&error)], None);
        }
    };
    let begun = Instant::now();
    let answer = whole_output(Command::new(&worker).arg("--version"), patience);
    let time = begun.elapsed();
    let answer = match answer {
        Ok(_) if time >= patience => return (vec![slow(patience)], None),
        Ok(answer) => answer,
        Err(error) => return (vec![missing(&format!("{}: {error}", worker.display()))], None),
    };
    let Some((built, folder)) = read_answer(&answer) else {
        return (vec![unloadable(&answer)], None);
    };
    let has_cuda = folder.join("libtorch_cuda.so").is_file();
    let (version, cuda) = version_of(&folder).unwrap_or_else(|| (built.clone(), None));
    let cuda = has_cuda.then(|| cuda.unwrap_or_else(|| LIBTORCH_CUDA.to_string()));
    let nccl = cuda.is_some().then(|| find_nccl(&folder)).flatten();
    let libtorch = Libtorch { version, folder, cuda, nccl, trainer: worker };
    (vec![judge(&libtorch, &built, time)], Some(libtorch))
}

/// Returns the row for a missing trainer; the error has a remedy after its semicolon.
fn missing(error: &str) -> Row {
    let (why, remedy) = error.split_once("; ").unwrap_or((error, "build it, or name it in DTRAIN_WORKER"));
    Row::warn(
        "libtorch",
        format!("the trainer cannot be started: {why}"),
        format!("{remedy}; only recipes need it"),
    )
}

fn slow(patience: Duration) -> Row {
    Row::warn(
        "libtorch",
        format!("the trainer does not start within {:.1} s", patience.as_secs_f64()),
        "run this command again: the first start reads libtorch from the disk; if it stays slow, copy libtorch to a \
         local disk",
    )
}

/// Returns the row for a trainer that prints something else, such as the error of the dynamic loader.
fn unloadable(answer: &str) -> Row {
    if answer.starts_with("dtrain-worker ") {
        let remedy = "build it again, with `cargo build --release -p dtrain-worker`";
        return Row::warn("libtorch", "the trainer is of another version than dtrain", remedy);
    }
    let line = answer.lines().find(|line| line.contains("error")).or(answer.lines().next());
    let line = line.unwrap_or("no output").trim();
    let remedy =
        "run `cargo xtask setup` and build again, or set LIBTORCH (and LD_LIBRARY_PATH to its `lib` folder)";
    Row::fail("libtorch", format!("the trainer cannot load it: {line}"), remedy)
}

fn judge(libtorch: &Libtorch, built: &str, time: Duration) -> Row {
    let Libtorch { version, folder, cuda, .. } = libtorch;
    let kind = cuda.as_ref().map_or("for the CPU".to_owned(), |cuda| format!("for CUDA {cuda}"));
    let value = format!("{version} {kind}, starts in {:.1} s, in {}", time.as_secs_f64(), folder.display());
    // libtorch keeps its binary interface within a minor version.
    let minor = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    match minor(version) == minor(built) {
        true => Row::ok("libtorch", value),
        false => Row::fail(
            "libtorch",
            format!("{value}; the trainer is built for {built}"),
            format!("set LIBTORCH and LD_LIBRARY_PATH to libtorch {built}, or build the trainer again"),
        ),
    }
}

/// Checks that driver, libtorch and NCCL fit each other.
pub(super) fn judge_cuda(libtorch: &Libtorch, gpus: Option<&Gpus>) -> Vec<Row> {
    let Some(cuda) = &libtorch.cuda else {
        let unused = gpus.filter(|gpus| !gpus.names.is_empty()).map(|_| {
            let remedy = format!("install libtorch for CUDA with {}", libtorch.cuda_command());
            Row::warn("CUDA", "libtorch is the CPU build, so the GPUs are not used", remedy)
        });
        return unused.into_iter().collect();
    };
    let mut rows = Vec::new();
    let major = cuda.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(LIBTORCH_CUDA);
    if let Some(Gpus { versions, .. }) = gpus {
        let newest = versions.cuda.as_ref().map(|cuda| format!(", up to CUDA {cuda}")).unwrap_or_default();
        let value = format!("{}{newest}; libtorch needs CUDA {major}", versions.driver);
        rows.push(if versions.supports(major) {
            Row::ok("NVIDIA driver", value)
        } else {
            let newer = oldest_driver(major)
                .map_or("a newer driver".to_owned(), |it| format!("driver {it} or newer"));
            let remedy =
                format!("install {newer}, or use a libtorch for an older CUDA (LIBTORCH and DTRAIN_CUDA)");
            Row::fail("NVIDIA driver", value, remedy)
        });
    }
    let count = gpus.map_or(0, |gpus| gpus.names.len());
    rows.push(match &libtorch.nccl {
        Some(path) => Row::ok("NCCL", nccl_text(path)),
        None if count > 1 => Row::fail(
            "NCCL",
            format!("{NCCL} is not found, and {count} GPUs need it to exchange gradients"),
            format!(
                "install it with {}, or train with DTRAIN_TRANSPORT=gloo, which is slower",
                libtorch.cuda_command()
            ),
        ),
        None => Row::ok("NCCL", format!("{NCCL} is not found; only several GPUs need it")),
    });
    rows
}

/// Searches in the order of the dynamic loader: beside libtorch, LD_LIBRARY_PATH, its cache, system folders.
fn find_nccl(libtorch: &Path) -> Option<PathBuf> {
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let first = [libtorch.join("../../nvidia/nccl/lib"), libtorch.to_owned()];
    let mut files = first.into_iter().chain(std::env::split_paths(&listed)).map(|folder| folder.join(NCCL));
    let cached = || in_cache(&fs::read("/etc/ld.so.cache").unwrap_or_default());
    let system = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(|folder| Path::new(folder).join(NCCL));
    files
        .find(|file| file.is_file())
        .or_else(cached)
        .or_else(|| system.into_iter().find(|file| file.is_file()))
}

/// Finds NCCL in `/etc/ld.so.cache`, which has paths that end in a zero byte.
fn in_cache(cache: &[u8]) -> Option<PathBuf> {
    let end = format!("/{NCCL}");
    let mut texts = cache.split(|byte| *byte == 0);
    let found = texts.find(|text| text.starts_with(b"/") && text.ends_with(end.as_bytes()))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(found)))
}

/// Returns the version, if a file name has it, and the path.
fn nccl_text(path: &Path) -> String {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let of_name = name.strip_prefix("libnccl.so.").filter(|version| version.contains('.')).map(str::to_owned);
    // A wheel's library has no version in its name; a folder beside the package has.
    let packages = real.ancestors().nth(4).and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten();
    let mut packages = packages.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let of_wheel = || {
        let name = packages.find(|name| name.starts_with("nvidia_nccl") && name.ends_with(".dist-info"))?;
        Some(name.trim_end_matches(".dist-info").split_once('-')?.1.to_owned())
    };
    let version = of_name.or_else(of_wheel).map(|version| format!("{version} in ")).unwrap_or_default();
    format!("{version}{}", real.parent().unwrap_or(&real).display())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::row::Level;
    use super::*;
    use dtrain_common::gpu::Versions;

    #[test]
    fn the_trainers_answer_is_read() {
        let answer = "dtrain-worker 0.1.0\nlibtorch 2.11.0 in /opt/torch in use/lib\n";
        assert_eq!(read_answer(answer), Some(("2.11.0".into(), "/opt/torch in use/lib".into())));
        let loader = "dtrain-worker: error while loading shared libraries: libtorch_cpu.so: cannot open shared object \
                      file: No such file or directory\n";
        assert_eq!(read_answer(loader), None);
        let row = unloadable(loader);
        assert!(row.level == Level::Fail && row.value.contains("libtorch_cpu.so: cannot open"), "{row:?}");
        assert!(row.remedy.unwrap().contains("LIBTORCH"));
        assert!(unloadable("").value.ends_with("no output"));
        assert_eq!(unloadable("dtrain-worker 0.1.0\n").level, Level::Warn);
    }

    fn libtorch(cuda: Option<&str>, nccl: Option<&str>) -> Libtorch {
        Libtorch {
            version: "2.11.0".into(),
            folder: "/t/lib".into(),
            cuda: cuda.map(Into::into),
            nccl: nccl.map(Into::into),
            trainer: "/t/dtrain-worker".into(),
        }
    }

    fn gpus(count: usize, cuda: &str) -> Gpus {
        let versions = Versions { driver: "550.54".into(), cuda: Some(cuda.into()) };
        Gpus { versions, names: vec!["T4".into(); count], free: count }
    }

    #[test]
    fn another_libtorch_than_at_build_time_fails() {
        let time = Duration::from_millis(300);
        let row = judge(&libtorch(Some("13.0"), None), "2.11.0", time);
        assert_eq!(
            (row.level, row.value.as_str()),
            (Level::Ok, "2.11.0 for CUDA 13.0, starts in 0.3 s, in /t/lib")
        );
        let row = judge(&libtorch(None, None), "2.10.0", time);
        assert!(row.level == Level::Fail && row.value.contains("built for 2.10.0"), "{row:?}");
    }

    #[test]
    fn driver_libtorch_and_nccl_must_fit() {
        let levels = |libtorch: &Libtorch, gpus: Option<&Gpus>| -> Vec<(String, Level)> {
            judge_cuda(libtorch, gpus).into_iter().map(|row| (row.what, row.level)).collect()
        };
        let row = |what: &str, level| (what.to_owned(), level);
        let cuda = |nccl| libtorch(Some("13.0"), nccl);
        assert_eq!(levels(&libtorch(None, None), None), []);
        assert_eq!(levels(&libtorch(None, None), Some(&gpus(1, "13.0"))), [row("CUDA", Level::Warn)]);
        assert_eq!(levels(&cuda(None), None), [row("NCCL", Level::Ok)]);
        assert_eq!(
            levels(&cuda(None), Some(&gpus(2, "12.4"))),
            [row("NVIDIA driver", Level::Fail), row("NCCL", Level::Fail)]
        );
        let rows = judge_cuda(&cuda(Some("/no/libnccl.so.2")), Some(&gpus(2, "13.1")));
        assert_eq!(rows[0].value, "550.54, up to CUDA 13.1; libtorch needs CUDA 13");
        assert_eq!(rows[1], Row::ok("NCCL", "/no"));
        let old = judge_cuda(&cuda(None), Some(&gpus(1, "12.4"))).remove(0);
        assert!(old.remedy.unwrap().starts_with("install driver 580 or newer, or use a libtorch"));
    }

    #[test]
    fn nccl_is_found_in_the_loaders_cache() {
        let cache =
            b"ld.so-1.1\0libnccl.so.2\0/usr/lib/x86_64-linux-gnu/libnccl.so.2\0libz.so.1\0/lib/libz.so.1\0";
        assert_eq!(in_cache(cache), Some("/usr/lib/x86_64-linux-gnu/libnccl.so.2".into()));
        assert_eq!(in_cache(b"libnccl.so.2\0"), None);
    }

    #[test]
    fn ncclv_version_comes_from_the_file_or_the_package() {
        let folder = tempfile::tempdir().unwrap();
        let lib = folder.path().join("nvidia/nccl/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libnccl.so.2"), "").unwrap();
        let said = nccl_text(&lib.join(NCCL));
        assert!(said.starts_with('/'), "{said}");
        fs::create_dir(folder.path().join("nvidia_nccl_cu13-2.28.9.dist-info")).unwrap();
        assert!(nccl_text(&lib.join(NCCL)).starts_with("2.28.9 in /"));
        fs::rename(lib.join(NCCL), lib.join("libnccl.so.2.27.3")).unwrap();
        std::os::unix::fs::symlink("libnccl.so.2.27.3", lib.join(NCCL)).unwrap();
        assert!(nccl_text(&lib.join(NCCL)).starts_with("2.27.3 in /"));
        assert_eq!(find_nccl(&folder.path().join("torch/lib")), None.or(find_nccl(Path::new("/nowhere"))));
    }
}
