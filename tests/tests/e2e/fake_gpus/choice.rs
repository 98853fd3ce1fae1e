//! The choice of GPUs: `--gpu-ids`, CUDA_VISIBLE_DEVICES and MIG.

use dtrain_test_kit::thorough;
use dtrain_tests::process::output_text;
use dtrain_tests::runs::gpt;
use serde_json::Value;

use super::Machine;

const DIVIDED: &str = r#"
[[gpu]]
count = 2
name = "NVIDIA A100-SXM4-40GB"
memory = "40GiB"
[[gpu]]
name = "NVIDIA A30"
memory = "24GiB"
mig = [
    { profile = "1g.6gb", memory = "6GiB", multiprocessors = 14 },
    { profile = "2g.12gb", memory = "12GiB", multiprocessors = 28 },
]
"#;

const GPU_1: &str = "GPU-fa4e0000-0000-4000-8000-000000000001";
const BOTH_INSTANCES: &str =
    "MIG-fa4e0000-0000-4000-8000-000002000000,MIG-fa4e0000-0000-4000-8000-000002000001";

/// Returns the GPU of each rank of a training, such as `GPU 1` or `MIG 0`.
fn trained_on(machine: &Machine, args: &[&str], list: Option<&str>) -> (Vec<String>, String) {
    let name = format!("run{}{}", args.concat(), list.unwrap_or_default()).replace(',', "-");
    let variables: Vec<_> = list.map(|list| ("CUDA_VISIBLE_DEVICES", list)).into_iter().collect();
    let output = machine.launch(&name, &[args, &["--set", "train.steps=1"]].concat(), &variables);
    let text = output_text(&output);
    assert!(output.status.success(), "{args:?} {list:?}: {text}");
    let own = |counts: Value| {
        let contexts = counts["contexts"].as_array().unwrap();
        let opened: Vec<usize> = (0..contexts.len()).filter(|device| contexts[*device] != 0).collect();
        let [device] = opened[..] else { panic!("contexts {contexts:?}: {text}") };
        let uuid = counts["devices"][device].as_str().unwrap();
        format!("{} {}", &uuid[..3], &uuid[uuid.len() - 1..])
    };
    (machine.counts(&name).into_iter().map(own).collect(), text)
}

#[test]
fn each_worker_computes_on_the_gpu_that_the_user_names() {
    let Ok(machine) = Machine::new(3, &gpt(1, "")) else { return };
    machine.describe(DIVIDED);
    let cases = [
        (
            &["--gpu-ids", BOTH_INSTANCES][..],
            None,
            &["MIG 0", "MIG 1"][..],
            "2 workers on MIG instance 0 of GPU 2 and MIG instance 1 of GPU 2 (NVIDIA A30 MIG 1g.6gb, NVIDIA A30 MIG 2g.12gb);",
        ),
        (&[], Some("1,0"), &["GPU 1", "GPU 0"], "2 workers, 2 GPUs (NVIDIA A100-SXM4-40GB) visible;"),
        (
            &["--nproc", "2"],
            None,
            &["MIG 0"],
            "only 1 of 2 MIG instances (NVIDIA A30 MIG 1g.6gb) visible: starting 1 worker instead;",
        ),
        (
            &[],
            Some(""),
            &[],
            "CUDA_VISIBLE_DEVICES=\"\" hides the 3 GPUs of this machine; starting 1 worker on the CPU",
        ),
        (
            &["--gpu-ids", "1,0"],
            None,
            &["GPU 1", "GPU 0"],
            "2 workers on GPUs 1 and 0 (NVIDIA A100-SXM4-40GB);",
        ),
        (&["--gpu-ids", GPU_1], None, &["GPU 1"], "1 worker on GPU 1 (NVIDIA A100-SXM4-40GB);"),
        (&["--nproc", "1"], Some(GPU_1), &["GPU 1"], "1 worker, 1 GPU (NVIDIA A100-SXM4-40GB) visible;"),
        (
            &[],
            Some(&BOTH_INSTANCES[..40]),
            &["MIG 0"],
            "1 worker, 1 MIG instance (NVIDIA A30 MIG 1g.6gb) visible;",
        ),
        (&["--gpu-ids", "none"], None, &[], "1 worker on the CPU;"),
    ];
    for &(args, list, expected, words) in thorough::cases(&cases, 4) {
        let (found, text) = trained_on(&machine, args, list);
        assert_eq!(found, expected, "{args:?} {list:?}: {text}");
        assert!(text.contains(words), "{words:?} in {text}");
    }
}

#[test]
fn a_wrong_choice_is_one_error_that_lists_the_gpus() {
    let Ok(machine) = Machine::new(3, &gpt(1, "")) else { return };
    machine.describe(DIVIDED);
    const LIST: &str = "\n  0: NVIDIA A100-SXM4-40GB, 40.00 GiB, GPU-fa4e0000-0000-4000-8000-000000000000\n";
    for (args, list, words) in [
        (&["--gpu-ids", "7"][..], None, "`7` is not a GPU of this machine"),
        (&["--gpu-ids", "2"], None, "GPU 2 is divided into MIG instances"),
        (&["--gpu-ids", "0,0"], None, "`0` and `0` both name GPU 0"),
        (&["--gpu-ids", "GPU-f"], None, "`GPU-f` matches several UUIDs"),
        (&["--gpu-ids", "0-1"], None, "`0-1` is not a GPU"),
        (
            &["--gpu-ids", "0,1", "--nproc", "4"],
            None,
            "--nproc 4 gives 4 workers, but --gpu-ids 0,1 names 2 GPUs",
        ),
        (&["--gpu-ids", "0"], Some(""), "CUDA_VISIBLE_DEVICES=\"\" hides the 3 GPUs of this machine"),
        (&["--nproc", "1"], Some("9"), "CUDA_VISIBLE_DEVICES=\"9\" shows none of the 3 GPUs of this machine"),
        (&[], Some("0,0"), "CUDA_VISIBLE_DEVICES=\"0,0\" shows none of the 3 GPUs of this machine"),
    ] {
        let variables: Vec<_> = list.map(|list| ("CUDA_VISIBLE_DEVICES", list)).into_iter().collect();
        let output = machine.launch("wrong", args, &variables);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?} {list:?}: {text}");
        assert!(text.contains(words) && text.matches("error:").count() == 1, "{words:?} in {text}");
        assert!(!text.contains("starting"), "{text}");
        let lists = words.starts_with('`') && words != "`0-1` is not a GPU" || words.contains("divided");
        assert_eq!(text.contains(LIST), lists, "{text}");
    }
}
