//! Options of a batch system that the script sets itself. The user's would override them.

use crate::directive::Directive;
use crate::spec::{JobSpec, System};

/// Short options and their long ones.
type Names = &'static [(&'static str, &'static str)];

const SLURM: Names = &[
    ("-A", "--account"),
    ("-C", "--constraint"),
    ("-G", "--gpus"),
    ("-J", "--job-name"),
    ("-N", "--nodes"),
    ("-a", "--array"),
    ("-c", "--cpus-per-task"),
    ("-n", "--ntasks"),
    ("-o", "--output"),
    ("-p", "--partition"),
    ("-q", "--qos"),
    ("-t", "--time"),
];
const FLUX: Names = &[
    ("-B", "--bank"),
    ("-N", "--nodes"),
    ("-c", "--cores-per-slot"),
    ("-g", "--gpus-per-slot"),
    ("-n", "--nslots"),
    ("-q", "--queue"),
    ("-t", "--time-limit"),
];

/// Returns options that no script leaves to the user: another number of runs or launchers, or another way to start again.
fn always(system: System) -> &'static [&'static str] {
    match system {
        System::Slurm => &["--array", "--ntasks", "--requeue", "--no-requeue"],
        System::Pbs => &["-J", "-r"],
        System::Lsf => &["-J", "-Q"],
        System::Flux | System::K8s => &[],
    }
}

/// Returns the first option of a directive that the script sets too. `plain` is the job without directives.
pub(crate) fn first(system: System, plain: &JobSpec, directive: &Directive) -> Option<String> {
    let script = crate::render(system, plain);
    let marks = system.directives();
    let lines = script.lines().filter_map(|line| marks.iter().find_map(|mark| line.strip_prefix(mark)));
    let mut set: Vec<_> = lines.flat_map(|line| options(system, line)).collect();
    set.extend(always(system).iter().map(|&name| name.to_owned()));
    options(system, directive.as_str()).iter().find_map(|given| {
        let mut is_it = set.iter().filter(|name| is_name(given, name));
        is_it.next().cloned()
    })
}

impl JobSpec {
    /// Returns whether a directive is one of these long options of Slurm or Flux.
    pub fn directs(&self, system: System, names: &[&str]) -> bool {
        let mut given =
            self.extra.directives.iter().flat_map(|directive| options(system, directive.as_str()));
        given.any(|given| names.iter().any(|name| is_name(&given, name)))
    }
}

/// Systems take the beginning of a long option for it.
fn is_name(given: &str, name: &str) -> bool {
    given == name || given.starts_with("--") && name.starts_with(given)
}

/// Returns the options of a line, by their long names where there are such. One of PBS may have several resources, such as
/// `-l walltime`.
fn options(system: System, line: &str) -> Vec<String> {
    let words = shlex::split(line).unwrap_or_else(|| line.split_whitespace().map(str::to_owned).collect());
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate().filter(|(_, word)| word.starts_with('-')) {
        if word.starts_with("--") {
            found.push(word.split('=').next().unwrap_or_default().to_owned());
            continue;
        }
        let (name, value) = match word.char_indices().nth(2) {
            Some((end, _)) => word.split_at(end),
            None => (word.as_str(), ""),
        };
        match (system, name) {
            // Its names have any length. Several `-R` add up.
            (System::Lsf, _) => {
                let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
                found.extend((name != "-R").then(|| name.to_owned()));
            }
            (System::Pbs, "-l") => {
                let list =
                    if value.is_empty() { words.get(at + 1).map_or("", String::as_str) } else { value };
                let resources = list.split(',').map(|part| part.split('=').next().unwrap_or_default());
                found.extend(resources.map(|resource| format!("-l {resource}")));
            }
            (System::Pbs | System::K8s, _) => found.push(name.to_owned()),
            (System::Slurm | System::Flux, _) => {
                let names = if system == System::Slurm { SLURM } else { FLUX };
                let long = names.iter().find(|(short, _)| *short == name);
                found.push(long.map_or(name, |(_, long)| long).to_owned());
            }
        }
    }
    found
}
