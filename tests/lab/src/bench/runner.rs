//! Runs one case and reads its figures.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use dtrain_common::run_dir::RunDir;

use super::case::{Case, Mode, Network, Transport};
use super::figures::{self, Figures};
use crate::commands::{cpu_command, last_lines};
use crate::files::{RunFiles, read};
use xtask::process::Signals;

/// Ranks or processes of every training.
const RANKS: u64 = 2;

/// The work of the loaders: images of 224 pixels in batches of 32, two passes after an uncounted one.
const LOADER: [(&str, &str); 3] = [("--size", "224"), ("--batch", "32"), ("--epochs", "2")];

/// Enough for several thousand resized images.
const CACHE_MIB: &str = "1024";

/// Paths for running cases.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    pub(super) signals: &'a Signals,
    /// The folder with the recipes and PyTorch's programs.
    pub(super) sources: PathBuf,
    /// The folder of the built programs.
    pub(super) programs: PathBuf,
    pub(super) python: PathBuf,
    /// A folder with a text, for the GPT.
    pub(super) text: PathBuf,
    /// A folder with a folder of images per class, for the loaders; empty if no loader runs.
    pub(super) images: PathBuf,
    /// The folder for runs' files. After a failed run, its files show the reason.
    pub(super) work: PathBuf,
}

impl Runner<'_> {
    /// Runs the case once.
    pub(super) fn run(&self, case: Case) -> Result<Figures> {
        let folder = self.work.join(case.name().replace('/', "-"));
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let figures = self.run_in(case, &folder).with_context(|| case.name())?;
        // The folder holds checkpoints of a hundred megabytes each.
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        Ok(figures)
    }

    fn run_in(&self, case: Case, folder: &Path) -> Result<Figures> {
        match case {
            Case::Train(network, Mode::Dtrain { transport, overlap }) => {
                let run = folder.join("run");
                let mut launch = self.launch(network, RANKS, &run);
                launch
                    .args(["--set", &format!("reduce.overlap={overlap}")])
                    .env("DTRAIN_TRANSPORT", transport.name());
                self.run_all(vec![launch], folder)?;
                read_run(&run, network, RANKS)
            }
            Case::Train(network, Mode::DtrainAlone) => {
                let runs: Vec<PathBuf> = (0..RANKS).map(|rank| folder.join(format!("run-{rank}"))).collect();
                self.run_all(runs.iter().map(|run| self.launch(network, 1, run)).collect(), folder)?;
                let each: Vec<Figures> =
                    runs.iter().map(|run| read_run(run, network, 1)).collect::<Result<_>>()?;
                figures::combine_pair(&each)
            }
            Case::Train(network, Mode::Ddp) => self.torch(network, true, folder),
            Case::Train(network, Mode::TorchAlone) => self.torch(network, false, folder),
            Case::Loader | Case::CachedLoader => {
                let cache = if case == Case::CachedLoader { CACHE_MIB } else { "0" };
                let mut bench = cpu_command(&self.programs.join("loader-bench"));
                bench.arg(&self.images).args(LOADER.map(|(_, value)| value)).arg(cache);
                self.run_all(vec![bench], folder)?;
                figures::read_loader(&read(&folder.join("0.out"))?)
            }
            Case::TorchLoader => {
                let out = folder.join("loader.json");
                let mut python = self.python("loader.py");
                python.arg("--images").arg(&self.images).arg("--out").arg(&out);
                for (flag, value) in LOADER {
                    python.args([flag, value]);
                }
                self.run_all(vec![python], folder)?;
                figures::read_loader(&read(&out)?)
            }
            Case::Launch(workload, launcher) => self.run_workload(workload, launcher, folder),
            Case::Checkpoint(case) => self.run_checkpoint(case, folder),
        }
    }

    /// Returns the command of a dtrain run with samples for `ranks` ranks.
    fn launch(&self, network: Network, ranks: u64, run_dir: &Path) -> Command {
        let mut launch = self.dtrain(network.model());
        launch
            .args(["--nproc", &ranks.to_string(), "--run-dir"])
            .arg(run_dir)
            .args(["--set", &format!("train.steps={}", network.steps().all())])
            .args(["--set", &format!("train.effective_batch={}", ranks * network.batch())])
            .env("DTRAIN_TRANSPORT", Transport::Shared.name());
        if let Network::Gpt { context, .. } = network {
            launch
                .args(["--set", &format!("data.root={}", self.text.display())])
                .args(["--set", &format!("model.context={context}")]);
        }
        launch
    }

    /// Returns `dtrain launch` of a recipe in tests/bench; the caller appends flags.
    pub(super) fn dtrain(&self, recipe: &str) -> Command {
        let mut launch = cpu_command(&self.programs.join("dtrain"));
        launch
            .arg("launch")
            .arg(self.sources.join(format!("{recipe}.toml")))
            // Uses the worker just built, even if the user has set another one.
            .env_remove("DTRAIN_WORKER");
        launch
    }

    /// Runs PyTorch, each rank started as torchrun would start it.
    fn torch(&self, network: Network, together: bool, folder: &Path) -> Result<Figures> {
        let out = |rank: u64| folder.join(format!("rank-{rank}.json"));
        let ranks = (0..RANKS).map(|rank| {
            let mut python = self.python("train.py");
            python
                .args(["--model", network.model(), "--batch", &network.batch().to_string()])
                .args(["--steps", &network.steps().all().to_string(), "--out"])
                .arg(out(rank))
                .env("RANK", rank.to_string());
            if let Network::Gpt { context, .. } = network {
                python.args(["--context", &context.to_string()]);
            }
            if together {
                python.args(["--world", &RANKS.to_string(), "--meet"]).arg(folder.join("meet"));
            }
            python
        });
        self.run_all(ranks.collect(), folder)?;
        let files: Vec<String> = (0..RANKS).map(|rank| read(&out(rank))).collect::<Result<_>>()?;
        figures::read_torch(&files, together, network.steps())
    }

    pub(super) fn python(&self, script: &str) -> Command {
        let mut python = cpu_command(&self.python);
        python.arg(self.sources.join(script));
        // Both sides use the loopback network; without this, Gloo resolves the host's name.
        python.env("GLOO_SOCKET_IFNAME", "lo");
        python
    }

    /// Runs programs simultaneously to their ends. Standard output of the n-th goes to `n.out` in the folder,
    /// standard error to `n.err`.
    pub(super) fn run_all(&self, commands: Vec<Command>, folder: &Path) -> Result<()> {
        let outcomes: Vec<Result<()>> = thread::scope(|scope| {
            let run = |(number, command)| scope.spawn(move || self.run_expecting(0, command, number, folder));
            let threads: Vec<_> = commands.into_iter().enumerate().map(run).collect();
            let failed = || Err(anyhow!("a thread of the benchmark panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| failed())).collect()
        });
        self.signals.check()?;
        outcomes.into_iter().collect()
    }

    /// Runs one program, which must end with this exit code, as [`Self::run_all`] does.
    pub(super) fn run_expecting(
        &self,
        expected: u8,
        mut command: Command,
        number: usize,
        folder: &Path,
    ) -> Result<()> {
        let create = |kind: &str| {
            let path = folder.join(format!("{number}.{kind}"));
            File::create(&path).map(|file| (path, file))
        };
        let (_, output) = create("out").context("cannot create an output file")?;
        let (path, errors) = create("err").context("cannot create an output file")?;
        let program = command.get_program().to_string_lossy().into_owned();
        let code = self.signals.run(command.stdout(output).stderr(errors))?.code;
        self.signals.check()?;
        if code == expected {
            return Ok(());
        }
        let stderr = fs::read_to_string(&path).unwrap_or_default();
        bail!(
            "{program} ended with exit code {code}: {}; full output: {}",
            last_lines(&stderr),
            path.display()
        );
    }
}

fn read_run(run_dir: &Path, network: Network, ranks: u64) -> Result<Figures> {
    let files = RunFiles::read(&RunDir::new(run_dir))?;
    figures::read_dtrain(&files, network, ranks, network.steps())
        .with_context(|| format!("the run in {}", run_dir.display()))
}

/// Checks that both sides did the same work: equal numbers of parameters, equal means of loaded images.
///
/// # Errors
/// If two cases differ; names both.
pub(super) fn check_same_work(measured: &BTreeMap<Case, Vec<Figures>>, part: &str) -> Result<()> {
    use super::figures::Metric;
    /// For values with deviation 1: decoders and resamplers round differently.
    const PIXELS_WITHIN: f64 = 0.01;
    for (metric, within) in [(Metric::Parameters, 0.0), (Metric::PixelMean, PIXELS_WITHIN)] {
        let mut first = None;
        for (case, rounds) in measured.iter().filter(|(case, _)| case.part() == part) {
            for value in rounds.iter().filter_map(|figures| figures.get(&metric)) {
                let (other, known) = *first.get_or_insert((*case, *value));
                if (value - known).abs() > within {
                    bail!(
                        "cannot compare {} and {}: {metric:?} is {value} and {known}",
                        case.name(),
                        other.name()
                    );
                }
            }
        }
    }
    Ok(())
}
