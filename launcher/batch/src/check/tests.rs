#![allow(clippy::unwrap_used)]

use super::*;
use crate::array::ArrayFlag;
use crate::spec::{Account, Setup, Size, TimeLimit, Work};

fn job() -> JobSpec {
    JobSpec {
        name: "demo".parse().unwrap(),
        size: Size {
            nodes: 2,
            least_nodes: 2,
            gpus_per_node: 1,
            gpu_resource: None,
            cpus_per_task: None,
            memory: None,
        },
        time: None,
        account: Account::default(),
        work: Work {
            dtrain: "dtrain".parse().unwrap(),
            target: Target::Recipes { recipes: vec!["demo".parse().unwrap()], set: Vec::new() },
            run_dir: "/runs/demo".parse().unwrap(),
        },
        setup: Setup::default(),
        max_requeues: 3,
        array: None,
        runs_at_once: None,
        extra: Extra::default(),
    }
}

fn with_directives(system: System, directives: &[&str]) -> Result<(), String> {
    let directives = directives.iter().map(|text| text.parse().unwrap()).collect();
    let extra = Extra { directives, ..Extra::default() };
    let mut job = JobSpec { extra, max_requeues: 0, time: limit(120, 60), ..job() };
    job.setup.container = (system == System::K8s).then(|| "team/image".parse().unwrap());
    job.check(system).map_err(|error| error.to_string())
}

#[test]
fn directives_are_options_that_the_script_does_not_set() {
    for (system, lines) in [
        (
            System::Slurm,
            &["--exclude=node7", "--mail-type=END", "--dependency=afterok:71", "-w n1", "-q high", "-pgpu"][..],
        ),
        (System::Pbs, &["-W depend=afterok:71", "-m ea", "-l software=1"]),
        (System::Lsf, &["-w done(71)", "-R \"select[type==any]\"", "-N"]),
        (System::Flux, &["--requires=-host:n7", "--dependency=afterok:f1"]),
        (System::K8s, &["tolerations=[{\"key\":\"gpu\",\"operator\":\"Exists\"}]", "job.suspend=true"]),
    ] {
        assert_eq!(with_directives(system, lines), Ok(()), "{}", system.name());
    }
    for (system, line, words) in [
        (
            System::Slurm,
            "exclude=node7",
            "is not an option of slurm; write it as in a script, `--exclude=node7`",
        ),
        (System::Slurm, "--nodes=9", "the script sets --nodes already; give the flag of `dtrain batch`"),
        (System::Slurm, "-N 9", "the script sets --nodes already"),
        (System::Slurm, "--exclude=n7 -N9", "the script sets --nodes already"),
        (System::Slurm, "--node=9", "the script sets --nodes already"),
        (System::Slurm, "-t 1:00", "the script sets --time already"),
        (System::Slurm, "-a 0-3", "the script sets --array already"),
        (System::Slurm, "--requeue", "the script sets --requeue already"),
        (System::Pbs, "-l software=1,walltime=1:00", "the script sets -l walltime already"),
        (System::Pbs, "-lselect=9", "the script sets -l select already"),
        (System::Pbs, "-N x", "the script sets -N already"),
        (System::Pbs, "-J 0-3", "the script sets -J already"),
        (System::Lsf, "-Q 1", "the script sets -Q already"),
        (System::Lsf, "-n9", "the script sets -n already"),
        (System::Flux, "-n 9", "the script sets --nslots already"),
        (System::Flux, "--nslots 9", "the script sets --nslots already"),
        (System::K8s, "container.command=[\"rm\"]", "the script sets container.command already"),
        (System::K8s, "tolerations=[{key:gpu}]", "begins as JSON and is none: key must be a string"),
        (System::K8s, "--exclude=node7", "is not an option of k8s; write a field and its value"),
        (System::K8s, "restartPolicy=Always", "the script sets restartPolicy already"),
    ] {
        let error = with_directives(system, &[line]).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let twice = ["tolerations=[]", "serviceAccountName=a", "serviceAccountName=b"];
    assert!(with_directives(System::K8s, &twice).unwrap_err().contains("serviceAccountName"));
}

#[test]
fn a_directive_is_known_by_each_of_its_spellings() {
    let directs = |text: &str| {
        let extra = Extra { directives: vec![text.parse().unwrap()], ..Extra::default() };
        JobSpec { extra, ..job() }.directs(System::Slurm, &["--partition", "--qos"])
    };
    for text in ["--partition=high", "--part high", "-p high", "-phigh", "--qos=a", "-q a", "-w n1 -q a"] {
        assert!(directs(text), "{text}");
    }
    for text in ["--prefer=a100", "-w n1", "--exclude=-q"] {
        assert!(!directs(text), "{text}");
    }
}

#[test]
fn runs_at_once_need_runs() {
    let with = |text: &str| {
        let ArrayFlag { array, runs_at_once } = text.parse().unwrap();
        JobSpec { array, runs_at_once, ..job() }
    };
    assert_eq!(with("4%2").check(System::Slurm), Ok(()));
    assert_eq!(with("%2").check(System::Slurm), Err(SpecError::NothingAtOnce { number: 2 }));
    assert!(matches!(with("4%2").check(System::K8s), Err(SpecError::NoImage | SpecError::NoEffect { .. })));
}

fn limit(time: u64, before: u64) -> Option<TimeLimit> {
    Some(TimeLimit { time: Duration::from_secs(time), signal_before: Some(Duration::from_secs(before)) })
}

#[test]
fn a_signal_comes_before_the_limit() {
    let check = |time| JobSpec { time, ..job() }.check(System::Slurm);
    assert_eq!(check(limit(120, 60)), Ok(()));
    let error = check(limit(120, 120)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--time 2 min is not longer than --signal-before 2 min; give a longer time or a later signal"
    );
    assert!(matches!(check(limit(100_000, 65_536)), Err(SpecError::SignalTooLong { .. })));
}

#[test]
fn a_flag_without_effect_is_an_error() {
    let account = Account { queue: Some("gpu".parse().unwrap()), ..Account::default() };
    let error = JobSpec { account, ..job() }.check(System::Slurm).unwrap_err();
    assert_eq!(error.to_string(), "--queue has no effect on slurm; Slurm's word is --partition");
}

#[test]
fn a_program_has_no_key_to_sweep() {
    let mut job = job();
    job.work.target = Target::Program(vec!["./train".parse().unwrap()]);
    job.array = Some("lr=1,2".parse().unwrap());
    assert!(matches!(job.check(System::Slurm), Err(SpecError::SweepOfProgram { .. })));
    job.array = Some("2".parse().unwrap());
    assert_eq!(job.check(System::Slurm), Ok(()));
}

#[test]
fn several_recipes_are_an_array_of_their_own() {
    let of = |recipes: usize| {
        let mut job = job();
        let recipes = vec!["demo".parse().unwrap(); recipes];
        job.work.target = Target::Recipes { recipes, set: Vec::new() };
        job
    };
    assert_eq!(of(1).runs(), None);
    assert_eq!(of(1).run_dirs(), ["/runs/demo"]);
    assert_eq!((of(2).runs(), of(2).check(System::Slurm)), (Some(2), Ok(())));
    assert_eq!(of(2).run_dirs(), ["/runs/demo/0", "/runs/demo/1"]);
    let both = JobSpec { array: Some("2".parse().unwrap()), ..of(2) };
    assert_eq!(
        both.check(System::Slurm).unwrap_err().to_string(),
        "--array and several recipes both make an array; leave --array out, or give one recipe"
    );
    assert_eq!(of(1001).check(System::Slurm), Err(SpecError::TooManyRecipes { runs: 1001 }));
    assert_eq!(
        of(2).check(System::Flux).unwrap_err().to_string(),
        "an array of recipes has no effect on flux; write one script for each recipe"
    );
}

#[test]
fn no_line_of_the_user_is_an_option_of_the_system() {
    let mut setup = job();
    setup.setup.commands = Some("module load cuda\n  #SBATCH --nodes=900\n".to_owned());
    let mut program = job();
    program.work.target = Target::Program(vec!["sh".parse().unwrap(), "a\n#SBATCH -n 4".parse().unwrap()]);
    for job in [setup, program] {
        assert!(matches!(job.check(System::Slurm), Err(SpecError::Directive { .. })));
    }
}

#[test]
fn each_system_names_its_own_word() {
    let text = |text: &str| Some(text.parse().unwrap());
    for (system, account, message) in [
        (
            System::Pbs,
            Account { partition: text("a"), ..Account::default() },
            "--partition has no effect on pbs; its word is --queue",
        ),
        (
            System::Lsf,
            Account { qos: text("a"), ..Account::default() },
            "--qos has no effect on lsf; leave it out",
        ),
        (
            System::K8s,
            Account { account: text("a"), ..Account::default() },
            "--account has no effect on k8s; choose the namespace",
        ),
    ] {
        let error = JobSpec { account, ..job() }.check(system).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    let array = Some("2".parse().unwrap());
    assert!(matches!(
        JobSpec { array, ..job() }.check(System::Flux),
        Err(SpecError::NoEffect { flag: "--array", .. })
    ));
}

#[test]
fn pods_need_an_image_and_a_volume() {
    let mut pods = job();
    assert_eq!(pods.check(System::K8s), Err(SpecError::NoImage));
    pods.setup.container = Some("team/image".parse().unwrap());
    assert_eq!(pods.check(System::K8s), Err(SpecError::NoVolume));
    pods.setup.volume = Some("scratch:/data".parse().unwrap());
    assert!(matches!(pods.check(System::K8s), Err(SpecError::OutsideVolume { .. })));
    pods.work.run_dir = "/data/runs/demo".parse().unwrap();
    assert_eq!(pods.check(System::K8s), Ok(()));
    pods.account.constraint = Some("gpu:a100".parse().unwrap());
    assert!(matches!(pods.check(System::K8s), Err(SpecError::Label { .. })));
    let name = "My_run".parse().unwrap();
    assert!(matches!(JobSpec { name, ..pods }.check(System::K8s), Err(SpecError::PodName { .. })));
}
