//! The routing of the workers' output: shown streams, kept streams, and the prefixes of lines.

#[cfg(test)]
mod tests;

use crate::cli::{Choice, OutputArgs, PrefixTemplate, PrefixValues};
use anyhow::{Context, bail, ensure};
use dtrain_agent::cluster::ranks::Placement;
use dtrain_agent::io::output::{Form, FrameStyle, Stream, Style, Warnings, can_draw_frames};
use dtrain_agent::io::process::{Channel, Wiring};
use dtrain_agent::io::temporary;
use dtrain_common::log_line::LogFormat;
use std::path::PathBuf;
use std::time::Duration;

/// torchrun's variable for the prefix.
const TEMPLATE_VARIABLE: &str = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";

/// The wait for the rest of an unfinished line on a terminal.
const AT_A_TERMINAL: Duration = Duration::from_millis(200);
/// The wait for a file or pipe, where a line in two parts costs more.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// The default size of a log at its rotation.
const USUAL_LOG: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// On the screen.
    pub(crate) shown: bool,
    /// In its log file.
    pub(crate) kept: bool,
}

/// The output of all workers of this machine, after every check.
#[derive(Clone, Debug)]
pub(crate) struct Routing {
    /// By local rank, in the order of [`Stream::BOTH`].
    routes: Vec<[Route; 2]>,
    /// By local rank.
    prefixes: Vec<String>,
    labels: Labels,
    /// The rank of the first worker.
    first_rank: usize,
    pub(crate) format: LogFormat,
    /// The warnings of dtrain's trainer, over all attempts; none for a program, whose lines stay as they are.
    warnings: Option<Warnings>,
    /// Texts to search in shown lines, in the order of [`Stream::BOTH`]; lines with one are copied.
    pub(crate) filters: [Vec<String>; 2],
    /// The folder for logs of a launch without a run directory.
    pub(crate) log_dir: Option<PathBuf>,
    /// Whether the folder for logs must still be created as a temporary folder.
    temporary: bool,
    pub(crate) log_size: u64,
    pub(crate) note: Option<&'static str>,
}

/// The run directory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A recipe's: it always exists.
    Recipe,
    /// A program's, by --run-dir.
    RunDir,
    /// No directory: a program without --run-dir.
    Nowhere,
}

/// The parts of line prefixes that are equal for all workers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Labels {
    role: String,
    hostname: String,
    template: Option<PrefixTemplate>,
}

impl Labels {
    fn prefix(&self, local_rank: usize, placement: Placement) -> String {
        let rank = placement.first_rank + local_rank;
        match &self.template {
            Some(template) => template.fill(&PrefixValues {
                role_name: &self.role,
                local_rank,
                rank,
                hostname: &self.hostname,
            }),
            None if placement.world_size > 1 => format!("[rank {rank}] "),
            None => String::new(),
        }
    }
}

impl Routing {
    /// Checks the flags for this number of workers on this machine. Writes nothing.
    pub(crate) fn plan(args: &OutputArgs, workers: usize, role: &str, home: Home) -> anyhow::Result<Self> {
        if let Some(folder) = &args.log_dir
            && (folder.exists() || folder.is_symlink())
        {
            let shown = folder.display();
            ensure!(folder.is_dir(), "{shown} is not a folder; choose another --log-dir");
        }
        // Like torchrun, ignore an empty text.
        let inherited = std::env::var_os(TEMPLATE_VARIABLE).filter(|text| !text.is_empty());
        let template = inherited.map(|text| PrefixTemplate::new(&text.to_string_lossy())).transpose();
        let template = template.map_err(anyhow::Error::msg);
        let template = template.with_context(|| format!("{TEMPLATE_VARIABLE} is set wrongly"))?;
        let hostname = dtrain_common::host::name();
        Self::of(args, workers, home, Labels { role: role.to_owned(), hostname, template })
    }

    fn of(args: &OutputArgs, workers: usize, home: Home, inherited: Labels) -> anyhow::Result<Self> {
        check_folders(args, home)?;
        check_ranks(args, workers)?;
        let mut routes: Vec<[Route; 2]> =
            (0..workers).map(|rank| Stream::BOTH.map(|stream| route(args, rank, stream))).collect();
        let named = home != Home::Nowhere || args.log_dir.is_some();
        // Output that is only kept would be lost without a folder.
        let temporary = !named && routes.iter().flatten().any(|route| !route.shown);
        let has_folder = named || temporary;
        if !Stream::BOTH.iter().any(|stream| is_shown(&routes, *stream)) {
            let template = args.log_line_prefix_template.is_some();
            let filter = args.local_ranks_filter.is_some();
            for (given, flag) in [(filter, "--local-ranks-filter"), (template, "--log-line-prefix-template")]
            {
                ensure!(!given, "{flag} has no effect: --redirects hides all output");
            }
        }
        let filter = args.local_ranks_filter.as_ref();
        for (rank, routes) in routes.iter_mut().enumerate() {
            for route in routes {
                route.shown &= filter.is_none_or(|ranks| ranks.contains(&rank));
                route.kept &= has_folder;
            }
        }
        let filters = [&args.duplicate_stdout_filters, &args.duplicate_stderr_filters];
        check_filters(args, &routes, has_folder)?;
        let keeps = routes.iter().flatten().any(|route| route.kept);
        ensure!(
            keeps || filters.iter().any(|filter| filter.is_some()) || args.log_max_size.is_none(),
            "--log-max-size has no effect: no log files are kept; give --log-dir DIR or --run-dir DIR"
        );
        let note = (!has_folder && args.tee.is_some()).then_some(
            "--tee: the output is shown but not logged; to log it, give --log-dir DIR or --run-dir DIR",
        );
        let template = args.log_line_prefix_template.clone().or(inherited.template);
        let mut routing = Self {
            routes,
            prefixes: Vec::new(),
            first_rank: 0,
            format: args.format(),
            warnings: None,
            labels: Labels { template, ..inherited },
            filters: filters.map(|filter| filter.as_ref().map(|list| list.0.clone()).unwrap_or_default()),
            log_dir: args.log_dir.clone(),
            temporary,
            log_size: args.log_max_size.unwrap_or(USUAL_LOG),
            note,
        };
        routing.place(Placement::alone(workers));
        Ok(routing)
    }

    /// Makes the workers dtrain's own: their messages have colours, and their warnings are shown once.
    #[must_use]
    pub(crate) fn of_trainer(self) -> Self {
        Self { warnings: Some(Warnings::default()), ..self }
    }

    /// Returns a sentence about warnings that came several times.
    pub(crate) fn repeated_warnings(&self) -> Option<String> {
        self.warnings.as_ref()?.repeated()
    }

    /// Returns what the lines of this stream of this worker look like. Standard output of dtrain's trainer is data.
    pub(crate) fn form(&self, local_rank: usize, stream: Stream) -> Form {
        Form {
            prefix: self.prefixes[local_rank].as_bytes().to_vec(),
            format: if self.is_data(stream) { LogFormat::Text } else { self.format },
            has_colours: stream.has_colours(),
            warnings: self.warnings.clone().filter(|_| stream == Stream::Stderr),
            rank: self.first_rank + local_rank,
            stream: Some(stream),
        }
    }

    fn is_data(&self, stream: Stream) -> bool {
        self.warnings.is_some() && stream == Stream::Stdout
    }

    /// Returns whether the launcher reads the lines of this stream, whatever it shows them on.
    fn reads_lines(&self, stream: Stream) -> bool {
        !self.is_data(stream) && (self.format == LogFormat::Json || self.warnings.is_some())
    }

    /// Gives the workers their ranks in the next attempt.
    pub(crate) fn place(&mut self, placement: Placement) {
        self.first_rank = placement.first_rank;
        let prefix = |local_rank| self.labels.prefix(local_rank, placement);
        self.prefixes = (0..self.routes.len()).map(prefix).collect();
    }

    /// Creates the temporary folder for logs, which stays, if needed. Call it after all other checks.
    pub(crate) fn make_folder(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.temporary) {
            let folder = temporary::make_lasting("dtrain-logs-");
            let context = "--redirects: cannot create a folder for logs; give --log-dir DIR";
            self.log_dir = Some(folder.context(context)?);
        }
        Ok(())
    }

    pub(crate) fn workers(&self) -> usize {
        self.routes.len()
    }

    pub(crate) fn route(&self, local_rank: usize, stream: Stream) -> Route {
        self.routes[local_rank][stream.index()]
    }

    /// Returns whether both streams of this worker come through one channel, which keeps their order: they are shown on
    /// one file or terminal, and nothing needs them apart.
    pub(crate) fn is_together(&self, local_rank: usize, sinks: Sinks) -> bool {
        sinks.are_one
            && self.format == LogFormat::Text
            && Stream::BOTH.iter().all(|stream| self.is_only_shown(local_rank, *stream))
    }

    /// Returns the channels of this worker. `is_named`: by `--stdin-rank`.
    pub(crate) fn wiring(&self, local_rank: usize, sinks: Sinks, is_named: bool) -> Wiring {
        if self.format == LogFormat::Json {
            return Wiring::Apart([Channel::Pipe; 2]);
        }
        let channel = |stream: Stream| match sinks.terminals[stream.index()] {
            true if self.is_alone(local_rank) || is_named && self.workers() > 1 => Channel::Pty,
            _ => Channel::Pipe,
        };
        if self.is_together(local_rank, sinks) {
            return Wiring::Together(channel(Stream::Stdout));
        }
        let can_pass = |stream| !sinks.are_one && self.is_only_shown(local_rank, stream);
        Wiring::Apart(Stream::BOTH.map(|stream| match can_pass(stream) {
            true => channel(stream),
            false => Channel::Pipe,
        }))
    }

    /// Returns how this stream of this worker is shown on the launcher's stream.
    pub(crate) fn style(&self, local_rank: usize, stream: Stream, sinks: Sinks, wiring: Wiring) -> Style {
        let is_terminal = sinks.terminals[stream.index()];
        let line_timeout = if is_terminal { AT_A_TERMINAL } else { ELSEWHERE };
        let is_shown = |stream| self.route(local_rank, stream).shown;
        let is_mixed =
            sinks.are_one && matches!(wiring, Wiring::Apart(_)) && Stream::BOTH.into_iter().all(is_shown);
        match wiring.channel(stream) {
            _ if !is_shown(stream) => Style::Hidden,
            Channel::Pty => Style::Raw,
            Channel::Pipe if is_terminal || !self.is_alone(local_rank) || self.reads_lines(stream) => {
                Style::Lines {
                    frames: match (self.can_draw_frames(stream), local_rank) {
                        (true, 0) => FrameStyle::Drawn,
                        (true, _) => FrameStyle::Dropped,
                        (false, _) => FrameStyle::Lines,
                    },
                    line_timeout,
                }
            }
            Channel::Pipe if is_mixed => Style::Whole { line_timeout },
            Channel::Pipe => Style::Raw,
        }
    }

    /// Returns whether progress frames can be drawn on this stream.
    pub(crate) fn can_draw_frames(&self, stream: Stream) -> bool {
        self.format == LogFormat::Text && can_draw_frames(stream)
    }

    /// Returns whether this is the only worker, and its lines have no prefix.
    fn is_alone(&self, local_rank: usize) -> bool {
        self.workers() == 1 && self.prefixes[local_rank].is_empty()
    }

    fn is_only_shown(&self, local_rank: usize, stream: Stream) -> bool {
        let Route { shown, kept } = self.route(local_rank, stream);
        shown && !kept && self.filters[stream.index()].is_empty()
    }
}

/// The launcher's standard output and standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sinks {
    /// Whether both are the same file, pipe or terminal.
    pub(crate) are_one: bool,
    /// In the order of [`Stream::BOTH`].
    pub(crate) terminals: [bool; 2],
}

impl Sinks {
    pub(crate) fn now() -> Self {
        Self { are_one: Stream::are_one(), terminals: Stream::BOTH.map(Stream::is_terminal) }
    }
}

/// Returns the targets of a stream by --redirects and --tee.
fn route(args: &OutputArgs, local_rank: usize, stream: Stream) -> Route {
    let takes =
        |choice: &Option<Choice>| choice.as_ref().is_some_and(|choice| choice.takes(local_rank, stream));
    let (redirected, teed) = (takes(&args.redirects), takes(&args.tee));
    let neither = args.redirects.is_none() && args.tee.is_none();
    Route { shown: teed || !redirected, kept: teed || redirected || neither }
}

fn is_shown(routes: &[[Route; 2]], stream: Stream) -> bool {
    routes.iter().any(|routes| routes[stream.index()].shown)
}

/// Checks that a filter has a file, and lines that are shown.
fn check_filters(args: &OutputArgs, routes: &[[Route; 2]], has_folder: bool) -> anyhow::Result<()> {
    let filters = [&args.duplicate_stdout_filters, &args.duplicate_stderr_filters];
    for (stream, filter) in Stream::BOTH.into_iter().zip(filters) {
        if filter.is_none() {
            continue;
        }
        let flag = format!("--duplicate-{}-filters", stream.name());
        ensure!(
            has_folder,
            "{flag} writes a file, and there is no folder for it; give --log-dir DIR or --run-dir DIR"
        );
        ensure!(
            is_shown(routes, stream),
            "{flag} has no effect: it copies shown lines, and --redirects hides all"
        );
    }
    Ok(())
}

fn check_folders(args: &OutputArgs, home: Home) -> anyhow::Result<()> {
    let Some(log_dir) = &args.log_dir else {
        return Ok(());
    };
    let log_dir = log_dir.display();
    match home {
        Home::Nowhere => Ok(()),
        Home::Recipe => {
            bail!("--log-dir is for programs: the logs of a recipe are in its run directory; use --run-dir")
        }
        Home::RunDir => bail!(
            "--run-dir and --log-dir are both given; leave out --log-dir {log_dir} (the run directory has the logs), \
             or leave out --run-dir"
        ),
    }
}

/// Checks that every local rank that a flag names exists.
fn check_ranks(args: &OutputArgs, workers: usize) -> anyhow::Result<()> {
    let named = |choice: &Option<Choice>| -> Vec<usize> { choice.iter().flat_map(Choice::named).collect() };
    let filter = args.local_ranks_filter.iter().flatten().copied();
    for (flag, ranks) in [
        ("--redirects", named(&args.redirects)),
        ("--tee", named(&args.tee)),
        ("--local-ranks-filter", filter.collect()),
    ] {
        if let Some(absent) = ranks.into_iter().find(|rank| *rank >= workers) {
            let known = match workers {
                1 => "the only worker is 0".to_owned(),
                _ => format!("the {workers} workers are 0 to {}", workers - 1),
            };
            bail!("{flag}: there is no local rank {absent}; {known}");
        }
    }
    Ok(())
}
