//! The flags that say where the workers' output goes, with torchrun's names and meaning. What they come to together
//! is decided in `launch::streams`.

mod choice;
mod filters;
mod ranks;
mod size;
mod template;

pub(crate) use choice::Choice;
pub(crate) use filters::FilterList;
pub(crate) use ranks::RankList;
pub(crate) use size::LogSize;
pub(crate) use template::{Place, PrefixTemplate};

use clap::Args;
use std::path::PathBuf;

/// What is to become of the workers' output.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OutputArgs {
    /// Folder for a program's logs, where no run directory is wanted.
    ///
    /// Each launch makes attempt_N in it, the next that is free, with rank_R/stdout.log, stderr.log and error.json.
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,

    /// Output that goes to its log file only: 0 none, 1 standard output, 2 standard error, 3 both.
    ///
    /// One number for all workers, or `LOCAL_RANK:N,...` for some. Without --redirects and --tee everything is
    /// shown, and kept as well where there is a run or log directory; with one of them, what neither names is only
    /// shown. Without such a folder --redirects makes a temporary one.
    #[arg(short, long, value_name = "N|RANK:N,...", allow_negative_numbers = true)]
    pub(crate) redirects: Option<Choice>,

    /// Output that is shown and goes to its log file, in the form of --redirects; it comes before --redirects.
    #[arg(short, long, value_name = "N|RANK:N,...", allow_negative_numbers = true)]
    pub(crate) tee: Option<Choice>,

    /// Show the output of these local ranks only, such as `0,2`; log files are kept of all.
    #[arg(long, value_name = "RANK,...", allow_negative_numbers = true)]
    pub(crate) local_ranks_filter: Option<RankList>,

    /// What stands before each line that is shown [default: '[rank ${rank}] ' if there are several workers].
    ///
    /// `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}` are filled in; `$$` is a dollar sign. Without
    /// the flag TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE counts, if it is set.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) log_line_prefix_template: Option<PrefixTemplate>,

    /// Lines of standard output with one of these texts also go to filtered_stdout.log, for all workers.
    ///
    /// Texts are separated by commas; two commas are a comma within a text. The file lies in the folder of the
    /// attempt. Lines that are not shown are left out.
    #[arg(long, value_name = "TEXT,...", allow_hyphen_values = true)]
    pub(crate) duplicate_stdout_filters: Option<FilterList>,

    /// The same for standard error and filtered_stderr.log.
    #[arg(long, value_name = "TEXT,...", allow_hyphen_values = true)]
    pub(crate) duplicate_stderr_filters: Option<FilterList>,

    /// Size from which a log file is begun anew; 0 is no bound [default: 1 GiB].
    ///
    /// The full one is kept beside it as stdout.log.1, in the place of an earlier one, so a stream takes at most
    /// twice the size.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) log_max_size: Option<LogSize>,
}
