//! The machine that a process sees: from the file that [`FILE`] names, changed by variables for single settings.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::{env, fs};

use serde::Deserialize;

pub use values::{Bytes, Capability, HANG, LOST};

mod values;

/// Names the machine's TOML file.
pub const FILE: &str = "FAKE_GPU_MACHINE";

/// The most GPUs of a machine.
pub const MOST_GPUS: usize = 64;

/// Variables that change one setting, and their meanings. Lists for the GPUs have commas; the last entry repeats.
pub const VARIABLES: [(&str, &str); 17] = [
    (FILE, "TOML file that describes the machine"),
    ("FAKE_GPU_COUNT", "number of GPUs"),
    ("FAKE_GPU_NAME", "names of the GPUs"),
    ("FAKE_GPU_CC", "compute capabilities, such as 8.0"),
    ("FAKE_GPU_MEMORY", "memory of the GPUs, such as 40GiB"),
    ("FAKE_GPU_SMS", "multiprocessors of the GPUs"),
    ("FAKE_GPU_ID", "processes with the same value share the GPUs' memory"),
    ("FAKE_GPU_FAULT", "faults: site:n:code or site:n:code:rank, by comma"),
    ("FAKE_GPU_KERNEL_NS", "time of a kernel in nanoseconds: streams then run behind the host"),
    ("FAKE_GPU_CHECK", "1 reports accesses without an order, and events and pinned memory used too early"),
    ("FAKE_GPU_HOLLOW", "copies and fills above this size move no bytes"),
    ("FAKE_GPU_COMPUTE", "kernels with more elements compute nothing"),
    ("FAKE_GPU_NCCL_DEAD", "what NCCL does after a rank died: hang or error"),
    ("FAKE_GPU_COUNTS", "write counts to this path, followed by .PID.json"),
    ("FAKE_GPU_TIMELINE", "1 adds the timeline to the counts"),
    ("FAKE_GPU_TRACE", "write calls to this path, followed by .PID; - is standard error"),
    ("FAKE_GPU_LIBRARY", "set by the command: folder of the fake libraries"),
];

/// A machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Machine {
    /// Processes with the same name share the GPUs' memory.
    pub id: String,
    /// The driver's version.
    pub driver: String,
    /// The newest CUDA that the driver supports: 1000 times the major version, 10 times the minor version.
    pub cuda: i32,
    /// What CUDA's runtime reports instead of the number of GPUs, if not 0.
    pub driver_error: i32,
    /// What NVML's start returns.
    pub nvml_error: u32,
    /// How the GPUs are connected.
    pub link: Link,
    /// Kernels with more elements compute nothing.
    pub compute: Bytes,
    /// Copies and fills above this size move no bytes.
    pub hollow: Option<Bytes>,
    /// The time of a kernel in nanoseconds.
    pub kernel_ns: u64,
    /// Whether to report accesses without an order.
    pub check: bool,
    /// The behaviour of NCCL after a rank died.
    pub nccl_dead: Dead,
    /// Calls that fail.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
    /// The GPUs.
    #[serde(rename = "gpu")]
    pub gpus: Vec<Gpu>,
}

/// One or more equal GPUs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Gpu {
    /// How many.
    pub count: usize,
    /// The product's name.
    pub name: String,
    /// The compute capability.
    pub compute_capability: Capability,
    /// The memory.
    pub memory: Bytes,
    /// The number of multiprocessors.
    pub multiprocessors: i32,
    /// The memory of a context.
    pub context: Bytes,
    /// What a context fails with, if not 0: 46 for a GPU in exclusive use.
    pub context_error: i32,
    /// The workspace of a convolution.
    pub cudnn_workspace: Bytes,
    /// Processes outside this machine's programs.
    pub others: Vec<Other>,
    /// MIG instances.
    pub mig: Vec<Instance>,
}

/// A process that no program of the test started.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Other {
    /// Its id.
    pub pid: u32,
    /// Its memory.
    pub memory: Bytes,
}

/// A MIG instance.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// The profile, such as `1g.5gb`.
    pub profile: String,
    /// The memory.
    pub memory: Bytes,
    /// The number of multiprocessors.
    pub multiprocessors: i32,
}

/// A call that fails.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// A function, or `launch`, `node` or `nccl`.
    pub site: String,
    /// The number of the call, from 1.
    pub at: u64,
    /// The code or its name.
    #[serde(deserialize_with = "values::code")]
    pub code: i32,
    /// The rank that fails; all if absent.
    pub rank: Option<String>,
}

/// How the GPUs are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// NVLink: peer access works.
    Nvlink,
    /// PCI: peer access works.
    Pci,
    /// No peer access.
    None,
}

/// The behaviour of NCCL after a rank died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dead {
    /// The others wait forever.
    Hang,
    /// The others report an error.
    Error,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            id: String::new(),
            driver: "580.82.07".into(),
            cuda: 13000,
            driver_error: 0,
            nvml_error: 0,
            link: Link::Nvlink,
            compute: Bytes(65536),
            hollow: None,
            kernel_ns: 0,
            check: false,
            nccl_dead: Dead::Hang,
            faults: Vec::new(),
            gpus: vec![Gpu::default()],
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            count: 1,
            name: "Fake GPU".into(),
            compute_capability: Capability(8, 0),
            memory: Bytes(16 << 30),
            multiprocessors: 108,
            context: Bytes(450 << 20),
            context_error: 0,
            cudnn_workspace: Bytes(0),
            others: Vec::new(),
            mig: Vec::new(),
        }
    }
}

impl Machine {
    /// Reads the machine of a file's text.
    ///
    /// # Errors
    /// One sentence with the file, the line and the nearest known word.
    pub fn parse(file: &str, text: &str) -> Result<Self, String> {
        let machine: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            format!("{file}:{line}: {}", explain(error.message()))
        })?;
        machine.check().map_err(|why| format!("{file}: {why}"))
    }

    /// Reads the file and the variables of `variables`.
    ///
    /// # Errors
    /// One sentence: the file or a variable is wrong or unknown.
    pub fn load(variables: &BTreeMap<String, String>) -> Result<Self, String> {
        let ours =
            variables.iter().filter(|(name, value)| name.starts_with("FAKE_GPU_") && !value.is_empty());
        let ours: BTreeMap<&str, &str> = ours.map(|(name, value)| (&name[..], &value[..])).collect();
        if let Some(unknown) = ours.keys().find(|name| VARIABLES.iter().all(|(known, _)| known != *name)) {
            let known = VARIABLES.map(|(name, _)| name);
            return Err(format!("unknown variable {unknown}: did you mean {}?", nearest(unknown, &known)));
        }
        let mut machine = match ours.get(FILE) {
            Some(path) => {
                let text =
                    fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
                Self::parse(path, &text)?
            }
            None => Self::default(),
        };
        machine.change(&ours)?;
        machine.check()
    }

    fn change(&mut self, ours: &BTreeMap<&str, &str>) -> Result<(), String> {
        let number = |name: &str| -> Result<Option<u64>, String> {
            let parse = |text: &&str| text.parse().map_err(|_| format!("{name}={text} is not a number"));
            ours.get(name).map(parse).transpose()
        };
        if let Some(count) = number("FAKE_GPU_COUNT")? {
            let pattern = self.each();
            let gpus = (0..(count as usize).min(MOST_GPUS + 1)).map(|i| pattern.get(i).or(pattern.last()));
            self.gpus = gpus.flatten().cloned().collect();
        }
        self.gpus = self.each();
        for (index, gpu) in self.gpus.iter_mut().enumerate() {
            let nth = |name: &str| {
                let list = ours.get(name)?;
                list.split(',').nth(index).or_else(|| list.split(',').next_back()).map(str::trim)
            };
            if let Some(name) = nth("FAKE_GPU_NAME") {
                name.clone_into(&mut gpu.name);
            }
            if let Some(capability) = nth("FAKE_GPU_CC") {
                gpu.compute_capability = Capability::parse(capability)?;
            }
            if let Some(memory) = nth("FAKE_GPU_MEMORY") {
                gpu.memory = Bytes::parse(memory)?;
            }
            if let Some(sms) = nth("FAKE_GPU_SMS") {
                gpu.multiprocessors =
                    sms.parse().map_err(|_| format!("FAKE_GPU_SMS={sms} is not a number"))?;
            }
        }
        if let Some(faults) = ours.get("FAKE_GPU_FAULT") {
            let parsed: Result<Vec<_>, _> = faults.split(',').map(Fault::parse).collect();
            self.faults.extend(parsed.map_err(|why| format!("FAKE_GPU_FAULT: {why}"))?);
        }
        if let Some(id) = ours.get("FAKE_GPU_ID") {
            (*id).clone_into(&mut self.id);
        }
        self.kernel_ns = number("FAKE_GPU_KERNEL_NS")?.unwrap_or(self.kernel_ns);
        self.compute = number("FAKE_GPU_COMPUTE")?.map_or(self.compute, Bytes);
        self.check |= ours.get("FAKE_GPU_CHECK").is_some_and(|value| *value == "1");
        if let Some(size) = ours.get("FAKE_GPU_HOLLOW") {
            self.hollow = Some(Bytes::parse(size)?);
        }
        match ours.get("FAKE_GPU_NCCL_DEAD") {
            None => {}
            Some(&"hang") => self.nccl_dead = Dead::Hang,
            Some(&"error") => self.nccl_dead = Dead::Error,
            Some(other) => return Err(format!("FAKE_GPU_NCCL_DEAD={other}: write hang or error")),
        }
        Ok(())
    }

    /// Returns the GPUs one by one.
    fn each(&self) -> Vec<Gpu> {
        let one = |gpu: &Gpu| Gpu { count: 1, ..gpu.clone() };
        self.gpus.iter().flat_map(|gpu| vec![one(gpu); gpu.count.min(MOST_GPUS + 1)]).collect()
    }

    fn check(mut self) -> Result<Self, String> {
        self.gpus = self.each();
        if self.gpus.len() > MOST_GPUS {
            return Err(format!("more than {MOST_GPUS} GPUs: ask for {MOST_GPUS} at most"));
        }
        if self.id.contains('/') {
            return Err(format!("the machine's id {:?} has a slash: use letters and digits", self.id));
        }
        Ok(self)
    }
}

/// Returns toml's message about an unknown word with only the nearest known one.
fn explain(message: &str) -> String {
    let words: Vec<_> = message.split('`').skip(1).step_by(2).collect();
    match words[..] {
        [unknown, ref known @ ..] if message.starts_with("unknown") && !known.is_empty() => {
            format!("unknown word {unknown:?}: did you mean {:?}?", nearest(unknown, known))
        }
        _ => message.lines().next().unwrap_or(message).to_owned(),
    }
}

fn nearest<'a>(word: &str, known: &[&'a str]) -> &'a str {
    let distance = |other: &&&str| strsim::damerau_levenshtein(word, other);
    known.iter().min_by_key(distance).copied().unwrap_or_default()
}

/// The machine of this process. A wrong description ends the process: nothing may run on another machine than asked.
pub(crate) static MACHINE: LazyLock<Machine> = LazyLock::new(|| {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    Machine::load(&env::vars_os().filter_map(text).collect()).unwrap_or_else(|why| crate::messages::end(&why))
});

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<Machine, String> {
        Machine::load(&variables.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect())
    }

    #[test]
    fn unknown_words_name_the_line_and_the_nearest_word() {
        let error = Machine::parse("m.toml", "cuda = 13000\n[[gpu]]\nmemmory = \"4GiB\"\n").unwrap_err();
        assert_eq!(error, "m.toml:3: unknown word \"memmory\": did you mean \"memory\"?");
        let error = Machine::parse("m.toml", "link = \"nvlnk\"").unwrap_err();
        assert_eq!(error, "m.toml:1: unknown word \"nvlnk\": did you mean \"nvlink\"?");
        assert_eq!(
            load(&[("FAKE_GPU_MEMRY", "1")]).unwrap_err(),
            "unknown variable FAKE_GPU_MEMRY: did you mean FAKE_GPU_MEMORY?"
        );
    }

    #[test]
    fn file_of_the_docs_has_every_word() {
        let text = include_str!("../../../../docs/fake-gpus.md")
            .split("```toml\n")
            .nth(1)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        let machine = Machine::parse("fake-gpus.md", text).unwrap();
        assert_eq!((machine.gpus.len(), machine.gpus[2].mig.len(), machine.faults[0].code), (3, 1, 700));
    }

    #[test]
    fn sizes_and_faults_are_checked() {
        assert_eq!(
            Machine::parse("m", "[[gpu]]\nmemory = \"4GB\"").unwrap().gpus[0].memory,
            Bytes(4_000_000_000)
        );
        assert!(
            Machine::parse("m", "[[gpu]]\nmemory = \"4 bananas\"").unwrap_err().contains("is not a size")
        );
        assert!(load(&[("FAKE_GPU_FAULT", "cudaMalloc:3")]).unwrap_err().contains("site:n:code"));
        assert_eq!(load(&[("FAKE_GPU_FAULT", "launch:9:ecc:1")]).unwrap().faults[0].code, 214);
        assert!(load(&[("FAKE_GPU_COUNT", "65")]).unwrap_err().contains("64 at most"));
    }

    #[test]
    fn variables_change_gpus_one_by_one() {
        let machine =
            load(&[("FAKE_GPU_COUNT", "3"), ("FAKE_GPU_MEMORY", "1GiB,2GiB"), ("FAKE_GPU_CC", "7.5")]);
        let gpus = machine.unwrap().gpus;
        assert_eq!(gpus.iter().map(|gpu| gpu.memory.0 >> 30).collect::<Vec<_>>(), [1, 2, 2]);
        assert_eq!(gpus[2].compute_capability, Capability(7, 5));
    }
}
