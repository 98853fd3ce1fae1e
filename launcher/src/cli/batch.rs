//! The flags of `dtrain batch`.

use super::plan::GpuList;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use dtrain_batch::{ArrayFlag, Directive, Name, System, Value, Volume, Word};
use dtrain_common::time::parse_time;
use dtrain_common::units::ByteSize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// More of anything on one node, or more starts, are probably a typing error.
const MOST: i64 = 100_000;

#[derive(Debug, Args)]
pub(crate) struct BatchArgs {
    /// Batch system to write for.
    #[arg(value_name = "SYSTEM", value_parser = systems())]
    pub(crate) system: System,

    /// Path of a recipe, or name of a built-in one; several: an array.
    #[arg(value_name = "RECIPE", value_parser = NonEmptyStringValueParser::new(), required_unless_present = "program",
          conflicts_with = "program")]
    pub(crate) recipes: Vec<String>,

    /// Program and its arguments, after `--`.
    #[arg(value_name = "PROGRAM", last = true)]
    pub(crate) program: Vec<String>,

    /// Set one key of each recipe, such as `train.epochs=3`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", conflicts_with = "program")]
    pub(crate) set: Vec<String>,

    /// Folder of the run, or of a program's logs [default: runs/NAME].
    #[arg(long, value_name = "DIR", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) run_dir: Option<String>,

    /// Job name [default: that of the first recipe, or the program].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<Name>,

    /// Several runs: a number, or `KEY=VALUE,VALUE` for a sweep.
    ///
    /// `%N` behind them, or alone for several recipes: at most N at once.
    #[arg(long, value_name = "N|KEY=VALUES")]
    pub(crate) array: Option<ArrayFlag>,

    /// Flags for `dtrain launch`, such as `--max-restarts 3`; repeatable.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, value_parser = flags)]
    pub(crate) launch: Vec<Vec<Word>>,

    /// Option of the batch system, such as `--exclude=n7`; repeatable.
    ///
    /// For k8s a field of the pod and its JSON value: `serviceAccountName=me`.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) directive: Vec<Directive>,

    /// Hand the script over to the batch system, and print the job's id.
    #[arg(long)]
    pub(crate) submit: bool,

    /// Only show what the job and `dtrain plan` expect.
    #[arg(long, conflicts_with_all = ["submit", "output"])]
    pub(crate) dry_run: bool,

    /// Write the script to this file, not to standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) size: SizeArgs,

    #[command(flatten)]
    pub(crate) time: TimeArgs,

    #[command(flatten)]
    pub(crate) account: AccountArgs,

    #[command(flatten)]
    pub(crate) setup: SetupArgs,
}

/// Resources of the job.
#[derive(Debug, Args)]
#[command(next_help_heading = "Resources")]
pub(crate) struct SizeArgs {
    /// Number of nodes; MIN:MAX: the run continues with MIN.
    #[arg(long, value_name = "N|MIN:MAX", default_value = "1", allow_negative_numbers = true, value_parser = nodes)]
    pub(crate) nodes: RangeInclusive<u32>,

    /// GPUs of each node, one worker each; 0: CPU.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..=MOST))]
    pub(crate) gpus_per_node: u32,

    /// Name of a GPU on k8s: `nvidia.com/mig-1g.10gb` [default: nvidia.com/gpu].
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu_resource: Option<Value>,

    /// GPUs of the nodes, as for `dtrain plan`: checks the memory.
    ///
    /// Without --constraint it also chooses nodes of slurm, flux and lsf.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: Option<GpuList>,

    /// CPU cores of each node, for all its workers.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=MOST))]
    pub(crate) cpus_per_task: Option<u32>,

    /// Memory of each node, such as `64 GiB`.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) mem: Option<ByteSize>,
}

/// Time limit and starts of the job.
#[derive(Debug, Args)]
#[command(next_help_heading = "Time")]
pub(crate) struct TimeArgs {
    /// Time limit of one start: `2 h`, `1-12:00:00`.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) time: Option<Duration>,

    /// Stop workers this long before the limit [default: 10%, at most 2 min].
    ///
    /// A program is only stopped if the flag is given.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) signal_before: Option<Duration>,

    /// Start again at most K times after exit code 75.
    #[arg(long, value_name = "K", default_value_t = 10, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..=MOST))]
    pub(crate) max_requeues: u32,
}

/// Where the job runs, in the words of the batch system.
#[derive(Debug, Args)]
#[command(next_help_heading = "Queue")]
pub(crate) struct AccountArgs {
    /// Account that pays.
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<Value>,

    /// Partition of Slurm.
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<Value>,

    /// Queue of other systems.
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<Value>,

    /// Quality of service.
    #[arg(long, value_name = "NAME")]
    pub(crate) qos: Option<Value>,

    /// Properties of the nodes, such as `a100&nvlink`.
    #[arg(long, value_name = "TEXT")]
    pub(crate) constraint: Option<Value>,
}

/// The environment of the command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Environment")]
pub(crate) struct SetupArgs {
    /// Shell commands to run first, such as `module load`.
    #[arg(long, value_name = "FILE")]
    pub(crate) env_setup: Option<PathBuf>,

    /// Container image that has dtrain.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) container: Option<Word>,

    /// Claim of shared storage for k8s, such as `scratch:/data`.
    #[arg(long, value_name = "CLAIM:PATH")]
    pub(crate) volume: Option<Volume>,
}

/// The flags of `dtrain requeue`.
#[derive(Debug, Args)]
pub(crate) struct RequeueArgs {
    /// Folder of the run, or of a program's logs.
    #[arg(value_name = "DIR")]
    pub(crate) run_dir: PathBuf,

    /// Exit code of `dtrain launch`, on several nodes the highest; the run's own result decides.
    #[arg(long, value_name = "CODE")]
    pub(crate) code: u8,

    /// When this start began, in seconds since 1970; an older result is another start's.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) since: u64,

    /// Most requeues since the job was submitted.
    #[arg(long, value_name = "K")]
    pub(crate) most: u32,

    /// Name that all starts of one submission have; another one counts from 0.
    #[arg(long, value_name = "NAME")]
    pub(crate) submission: Option<String>,
}

fn systems() -> impl TypedValueParser<Value = System> {
    let words = PossibleValuesParser::new(System::ALL.map(|(_, name)| name));
    words.try_map(|word| {
        let system = System::ALL.into_iter().find(|(_, name)| *name == word);
        system.map(|(system, _)| system).ok_or("unknown batch system")
    })
}

/// Parses a time. A bare number is seconds elsewhere and minutes for Slurm, so it is an error.
fn time(text: &str) -> Result<Duration, &'static str> {
    parse_time(text).ok_or("write a time with its unit, such as `90 min`, `2 h` or `1-12:00:00`")
}

/// Parses `2` or `1:4`.
fn nodes(text: &str) -> Result<RangeInclusive<u32>, &'static str> {
    let number =
        |text: &str| text.parse::<u32>().ok().filter(|number| (1..=MOST).contains(&i64::from(*number)));
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    match (number(least), number(most)) {
        (Some(least), Some(most)) if least <= most => Ok(least..=most),
        _ => Err("write a number from 1 to 100000, or MIN:MAX"),
    }
}

/// Splits flags as a shell does.
fn flags(text: &str) -> Result<Vec<Word>, String> {
    let words = shlex::split(text).ok_or("a quote is not closed")?;
    words.iter().map(|word| word.parse::<Word>().map_err(|error| error.to_string())).collect()
}

fn memory(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>().map_err(|error| error.to_string())? {
        ByteSize(0..0x10_0000) => Err("less than 1 MiB; write a unit, such as `64 GiB`".into()),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::Command;
    use super::super::command::Cli;
    use super::*;
    use clap::Parser;

    fn parse(words: &[&str]) -> Result<BatchArgs, clap::Error> {
        let cli = Cli::try_parse_from(["dtrain", "batch", "slurm"].iter().chain(words))?;
        match cli.command {
            Command::Batch(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_recipe_or_a_program_is_needed() {
        assert_eq!(parse(&["demo", "--nodes", "2"]).unwrap().recipes, ["demo"]);
        assert_eq!(parse(&["a.toml", "b.toml", "--nodes", "2", "c.toml"]).unwrap().recipes.len(), 3);
        assert_eq!(parse(&["--nodes", "2", "--", "./train", "--nodes", "x"]).unwrap().program.len(), 3);
        for line in [
            &[][..],
            &["demo", "--", "./train"],
            &["demo", "b", "--", "./train"],
            &["--set", "a=1", "--", "./train"],
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn wrong_values_are_usage_errors() {
        for (flag, value) in [
            ("--nodes", "0"),
            ("--nodes", "-1"),
            ("--nodes", "4:2"),
            ("--nodes", "2:"),
            ("--launch", "--max-restarts '3"),
            ("--directive", "--a\nb"),
            ("--time", "30"),
            ("--time", "0 s"),
            ("--signal-before", "soon"),
            ("--mem", "64"),
            ("--mem", "x"),
            ("--account", "a\n#SBATCH --wrap=x"),
            ("--account", ""),
            ("--name", "a b"),
            ("--array", "1"),
            ("--max-requeues", "-1"),
            ("--container", "a\u{7}"),
        ] {
            assert_eq!(parse(&["demo", flag, value]).unwrap_err().exit_code(), 2, "{flag} {value:?}");
        }
        let args = parse(&["demo", "--time", "1-12:00:00", "--mem", "64 GiB"]).unwrap();
        assert_eq!(args.time.time, Some(Duration::from_secs(36 * 3600)));
        assert_eq!(args.size.mem, Some(ByteSize(64 << 30)));
        assert_eq!(parse(&["demo", "--nodes", "2:4"]).unwrap().size.nodes, 2..=4);
    }

    #[test]
    fn help_lines_fit_a_common_terminal() {
        let longest = help!("batch").lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(90), "{longest:?}");
    }
}
