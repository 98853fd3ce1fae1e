//! The folder of libraries that a program is started with.
//!
//! libtorch's libraries find NVIDIA's by `$ORIGIN/../../nvidia/*/lib`, where `$ORIGIN` is the folder of the path by
//! which they were opened, links not resolved. So links to libtorch's files beside a folder `nvidia` of fakes suffice.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io};

use anyhow::{Context, Result, bail};

/// The version of libtorch whose imports this crate knows.
pub const TORCH: &str = "2.11.0+cu130";

/// The linker's version script: each library's symbols have the version that libtorch asks for.
const VERSIONS: &str = include_str!(concat!(env!("OUT_DIR"), "/versions.map"));

/// The libraries' folders and names.
const NAMES: [(&str, &[&str]); 5] = [
    (
        "cu13",
        &[
            "libcublas.so.13",
            "libcublasLt.so.13",
            "libcuda.so.1",
            "libcudart.so.13",
            "libcufft.so.12",
            "libcufile.so.0",
            "libcupti.so.13",
            "libcurand.so.10",
            "libcusolver.so.12",
            "libcusparse.so.12",
            "libnvidia-ml.so.1",
            "libnvrtc.so.13",
        ],
    ),
    ("cudnn", &["libcudnn.so.9"]),
    ("cusparselt", &["libcusparseLt.so.0"]),
    ("nccl", &["libnccl.so.2"]),
    ("nvshmem", &["libnvshmem_host.so.3"]),
];

/// The folder, `target/fake-gpu/PROFILE`.
#[derive(Debug, Clone)]
pub struct Layout {
    folder: PathBuf,
}

impl Layout {
    /// Links the library that the folder of a build contains, and lays it out in `fake-gpu` beside that folder.
    ///
    /// # Errors
    /// As [`Self::link`]; the package is not built.
    pub fn of_build(build: &Path) -> Result<Self> {
        // Cargo gives a static library that is only a dependency a hash; builds of other features stay beside it.
        let time = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
        let is_archive = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libdtrain_fake_gpu") && name.ends_with(".a")
        };
        let folders = [build.to_owned(), build.join("deps")];
        let files = folders.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
        let newest = files.filter(is_archive).max_by_key(time);
        let archive = newest
            .with_context(|| format!("no static library in {}: build dtrain-fake-gpu", build.display()))?;
        let profile = build.file_name().unwrap_or_default();
        let folder = build.parent().context("no target folder")?.join("fake-gpu").join(profile);
        Self::link(&archive, &folder)
    }

    /// Links the library from its archive and lays out links to it, below `folder`. Both are skipped if done.
    ///
    /// # Errors
    /// No C compiler, or the folder is not writable.
    pub fn link(archive: &Path, folder: &Path) -> Result<Self> {
        let layout = Self { folder: folder.to_owned() };
        let library = layout.folder.join("libfake-gpu.so");
        let time = |path: &Path| fs::metadata(path).and_then(|found| found.modified());
        let newest =
            time(archive).with_context(|| format!("no {}: build the package first", archive.display()))?;
        create(folder)?;
        let lock = fs::File::create(folder.join("lock"))
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        lock.lock().context("cannot lock the folder")?;
        if time(&library).is_ok_and(|linked| linked >= newest) {
            return Ok(layout);
        }
        let script = layout.folder.join("versions.map");
        fs::write(&script, VERSIONS).with_context(|| format!("cannot write {}", script.display()))?;
        let new = layout.folder.join("libfake-gpu.so.new");
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut link = Command::new(&compiler);
        link.args(["-shared", "-o"]).arg(&new);
        link.arg(format!("-Wl,--version-script={}", script.display()))
            .arg("-Wl,--gc-sections,-soname,libfake-gpu.so");
        link.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
        link.args(["-lstdc++", "-lgcc_s", "-lpthread", "-ldl", "-lm"]);
        let output = match link.output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("no C compiler {}: install gcc or set CC", compiler.display())
            }
            Err(error) => return Err(error).with_context(|| format!("cannot start {}", compiler.display())),
        };
        if !output.status.success() {
            bail!("cannot link the fake libraries: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        for (package, names) in NAMES {
            let lib = layout.nvidia(package);
            create(&lib)?;
            for name in names {
                replace(Path::new("../../../../libfake-gpu.so"), &lib.join(name))?;
            }
        }
        fs::rename(&new, &library).with_context(|| format!("cannot write {}", library.display()))?;
        Ok(layout)
    }

    /// Lays out links to the files of libtorch, with the layout of a Python's site-packages.
    ///
    /// # Errors
    /// Another libtorch, or the folder is not writable.
    pub fn add_torch(&self, torch: &Path) -> Result<()> {
        let file = torch.join("version.py");
        let text = fs::read_to_string(&file).with_context(|| {
            format!(
                "no libtorch in {}: run `cargo xtask setup --cuda`, or name one by --torch",
                torch.display()
            )
        })?;
        let version =
            text.split("__version__ = '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or("?");
        if version != TORCH {
            bail!("{} is libtorch {version}, the fake GPUs know {TORCH}: use that version", torch.display());
        }
        let torch = torch.canonicalize().with_context(|| format!("cannot open {}", torch.display()))?;
        let own = self.site().join("torch");
        create(&own.join("lib"))?;
        for (from, to) in [(torch.clone(), own.clone()), (torch.join("lib"), own.join("lib"))] {
            let entries = fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))?;
            for entry in entries.flatten().filter(|entry| from != torch || entry.file_name() != "lib") {
                replace(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
        // Packages that PyTorch needs beside it, and its metadata, by which other packages know its version.
        let version = TORCH.split_once('+').map_or(TORCH, |(version, _)| version);
        for name in ["functorch", "torchgen", &format!("torch-{version}.dist-info")] {
            let beside = torch.with_file_name(name);
            if beside.is_dir() {
                replace(&beside, &self.site().join(name))?;
            }
        }
        Ok(())
    }

    /// Adds the packages of the Python for tests, which lacks NVIDIA's libraries. Does nothing without that Python.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn add_packages(&self, packages: &Path) -> Result<()> {
        for entry in fs::read_dir(packages).into_iter().flatten().flatten() {
            // Its empty libraries are for a PyTorch on the CPU.
            if entry.file_name() != "sitecustomize.py" && entry.file_name() != "empty" {
                replace(&entry.path(), &self.site().join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Puts programs where they find the fake libraries relative to themselves, and returns the first one's path.
    ///
    /// # Errors
    /// A program is missing, or the folder is not writable.
    pub fn add_programs(&self, programs: &[PathBuf]) -> Result<PathBuf> {
        let bin = self.folder.join("bin");
        create(&bin)?;
        for program in programs {
            let to = bin.join(program.file_name().unwrap_or_default());
            let inode = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
            let from = program
                .canonicalize()
                .with_context(|| format!("no {}: build it first", program.display()))?;
            if inode(&from) == inode(&to) {
                continue;
            }
            // Others may start at the same time, and run the present file.
            let new = to.with_extension(format!("{}.new", std::process::id()));
            // A symbolic link would be resolved; a link in the file system is not.
            fs::hard_link(&from, &new)
                .or_else(|_| fs::copy(&from, &new).map(drop))
                .and_then(|()| fs::rename(&new, &to))
                .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
            // Of two links to one file, the rename leaves both.
            let _ = fs::remove_file(&new);
        }
        let first = programs.first().and_then(|program| program.file_name()).unwrap_or_default();
        Ok(bin.join(first))
    }

    /// Returns the folder with the layout of a Python's site-packages.
    pub fn site(&self) -> PathBuf {
        self.folder.join("libtorch")
    }

    /// Returns the folder of the fakes of one of NVIDIA's packages.
    pub fn nvidia(&self, package: &str) -> PathBuf {
        self.site().join("nvidia").join(package).join("lib")
    }

    /// Returns the variables that a program needs: it finds the fakes, and Python finds this PyTorch.
    pub fn variables(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        let before = |first: &[PathBuf], name: &str| {
            let others = env::var_os(name).unwrap_or_default();
            let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
            env::join_paths(first.iter().cloned().chain(others)).unwrap_or_default()
        };
        let libraries = self.nvidia("cu13");
        vec![
            // A trainer that pip installed takes this libtorch in place of the one beside it.
            (
                "LD_LIBRARY_PATH",
                before(&[libraries.clone(), self.site().join("torch/lib")], "LD_LIBRARY_PATH"),
            ),
            ("PYTHONPATH", before(&[self.site()], "PYTHONPATH")),
            ("FAKE_GPU_LIBRARY", libraries.into()),
        ]
    }
}

/// Returns a trace of a real NVIDIA driver, which a fake machine must not shadow by accident.
pub fn real_driver() -> Option<PathBuf> {
    let fixed =
        ["/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg"].map(PathBuf::from);
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
    ];
    let libraries = folders.map(|folder| Path::new(folder).join("libcuda.so.1"));
    fixed.into_iter().chain(libraries).find(|path| path.exists())
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Makes a symbolic link, in place of an older one.
fn replace(target: &Path, link: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|found| found == target) {
        return Ok(());
    }
    // Other processes and threads may do the same at this time.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let new = PathBuf::from(format!("{}.{process}.{count}.new", link.display()));
    symlink(target, &new)
        .and_then(|()| fs::rename(&new, link))
        .with_context(|| format!("cannot create {}", link.display()))
}
