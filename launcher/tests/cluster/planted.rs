//! Faults of the network: the launcher names the cause and the remedy, in two seconds where it can be known.

use crate::harness::{Cluster, ENDPOINT, Finished, WORK, write_secret};
use dtrain_test_kit::network::Addresses;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// The time in which a fault that can be known at once is named, on a busy machine.
const SOON: Duration = Duration::from_secs(2);

/// A job whose first node is `n0`; each node's flags may differ.
struct Job<'a> {
    cluster: &'a Cluster,
    /// Flags of each node, which follow those of all.
    flags: Vec<Vec<&'a str>>,
    join_timeout: &'a str,
}

impl<'a> Job<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let nodes = cluster.network.nodes().len();
        Self { cluster, flags: vec![vec!["--rdzv-endpoint", ENDPOINT]; nodes], join_timeout: "6" }
    }

    fn flags(mut self, node: usize, flags: &[&'a str]) -> Self {
        self.flags[node] = flags.to_vec();
        self
    }

    /// Runs it, and returns how each node's launcher ended and when `words` were first on the standard error of
    /// `node`.
    #[track_caller]
    fn fail(self, node: usize, words: &[&str]) -> Vec<Finished> {
        self.fail_within(node, words, Some(SOON))
    }

    #[track_caller]
    fn fail_within(self, node: usize, words: &[&str], limit: Option<Duration>) -> Vec<Finished> {
        let cluster = self.cluster;
        let timeout = format!("join_timeout={}", self.join_timeout);
        let nnodes = self.flags.len().to_string();
        let begun = Instant::now();
        let start = |(node, flags): (usize, &Vec<&str>)| {
            let common = ["--nnodes", &nnodes, "--rdzv-conf", &timeout];
            let program = ["--", "sh", "-c", WORK];
            cluster.start_with(node, &[&common[..], flags, &program].concat())
        };
        let mut launches: Vec<_> = self.flags.iter().enumerate().map(start).collect();
        let is_named = |text: &str| words.iter().all(|word| text.contains(word));
        let (mut waits, mut named) = (None, None);
        while launches.iter_mut().any(|launch| launch.child.try_wait().unwrap().is_none()) {
            let text = launches[node].stderr();
            if waits.is_none() && text.contains("the run at") {
                waits = Some(Instant::now());
            }
            if named.is_none() && is_named(&text) {
                named = Some(waits.unwrap_or(begun).elapsed());
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the launchers do not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let done = cluster.wait(launches);
        // Launchers that end at once are never seen running.
        let at_once = || is_named(&done[node].stderr).then(|| waits.unwrap_or(begun).elapsed());
        let named = named.or_else(at_once);
        let text: String = done.iter().map(|done| format!("{:?}\n{}\n", done.code, done.stderr)).collect();
        assert!(is_named(&done[node].stderr), "{words:?} are not on n{node}:\n{text}");
        if let Some(limit) = limit {
            assert!(named.is_some_and(|named| named < limit), "{words:?} came after {named:?}:\n{text}");
        }
        done
    }
}

#[track_caller]
fn expect_code(done: &Finished, code: i32) {
    done.expect_code(code);
}

#[test]
fn an_unresolvable_endpoint() {
    let Some(cluster) = Cluster::new(2) else { return };
    let job = Job::new(&cluster).flags(1, &["--rdzv-endpoint", "head:29500"]);
    let done = job.fail(1, &["head", "cannot be resolved"]);
    expect_code(&done[1], 5);
}

#[test]
fn nothing_listens_at_the_endpoint() {
    let Some(cluster) = Cluster::new(2) else { return };
    // Node 0 waits at another port.
    let job = Job::new(&cluster).flags(0, &["--rdzv-endpoint", "n0:29501"]);
    let done = job.fail(1, &["n0:29500", "no process listens"]);
    expect_code(&done[1], 5);
}

#[test]
fn the_endpoints_host_is_down() {
    let Some(cluster) = Cluster::new(2) else { return };
    cluster.network.cut(&[0]);
    let done = Job::new(&cluster).fail_within(1, &["n0:29500", "does not answer"], None);
    expect_code(&done[1], 5);
}

#[test]
fn a_firewall_closes_the_endpoints_port() {
    let Some(cluster) = Cluster::new(2) else { return };
    cluster.network[0].block_ports(29500..=29500);
    let done = Job::new(&cluster).fail(1, &["n0:29500", "firewall"]);
    expect_code(&done[1], 5);
    expect_code(&done[0], 5);
}

#[test]
fn a_firewall_on_the_other_node_closes_the_workers_ports() {
    let Some(cluster) = Cluster::new(2) else { return };
    cluster.network[1].block_ports(1..=65535);
    // Replies to connections that node 1 opens come to its automatic ports: leave those of the endpoint open.
    let done = Job::new(&cluster).fail_within(1, &["n0:29500"], None);
    expect_code(&done[1], 5);
}

#[test]
fn the_endpoint_is_an_address_of_no_node() {
    let Some(cluster) = Cluster::new(2) else { return };
    let endpoint = &["--rdzv-endpoint", "10.77.0.99:29500"];
    let done =
        Job::new(&cluster).flags(0, endpoint).flags(1, endpoint).fail_within(0, &["10.77.0.99:29500"], None);
    expect_code(&done[0], 5);
    expect_code(&done[1], 5);
}

#[test]
fn the_endpoint_is_the_loopback_interface() {
    let Some(cluster) = Cluster::new(2) else { return };
    let endpoint = &["--rdzv-endpoint", "localhost:29500"];
    let done = Job::new(&cluster)
        .flags(0, endpoint)
        .flags(1, endpoint)
        .fail(0, &["only agents of this machine can join at localhost:29500"]);
    assert!(done.iter().all(|done| matches!(done.code, Some(2 | 5))));
}

#[test]
fn the_endpoints_name_is_a_loopback_address_on_its_own_node() {
    let Some(cluster) = Cluster::new(2) else { return };
    // As in Debian's /etc/hosts. The leader must listen where others reach it.
    let hosts = cluster.network[0].hosts();
    let text = fs::read_to_string(&hosts).unwrap().replace("10.77.0.1 n0", "127.0.1.1 n0");
    fs::write(hosts, text).unwrap();
    let launches = cluster.start_all("2", &[], WORK);
    cluster.wait_for_workers(0..2, 0);
    cluster.finish_work();
    crate::harness::expect_codes(&cluster.wait(launches), 0);
}

#[test]
fn the_endpoints_name_has_the_address_of_another_network() {
    let Some(cluster) = Cluster::new(2) else { return };
    cluster.network.add_second_interface(0);
    cluster.network.add_second_interface(1);
    let hosts = cluster.network[1].hosts();
    let text = fs::read_to_string(&hosts).unwrap().replace("10.77.0.1 n0", "192.168.77.1 n0");
    fs::write(hosts, text).unwrap();
    let done = Job::new(&cluster).fail_within(1, &["n0:29500", "192.168.77.1"], None);
    expect_code(&done[1], 5);
}

#[test]
fn the_interface_of_the_user_reaches_nobody() {
    let Some(cluster) = Cluster::new(2) else { return };
    cluster.network.add_second_interface(0);
    cluster.network.add_second_interface(1);
    let flags = &["--rdzv-endpoint", ENDPOINT, "--rdzv-interface", "eth1"];
    let done = Job::new(&cluster).flags(0, flags).flags(1, flags).fail_within(
        1,
        &["n0:29500", "from 192.168.77.2"],
        None,
    );
    assert!(matches!(done[1].code, Some(2 | 5)), "{:?}", done[1].code);
}

#[test]
fn the_interface_of_the_user_does_not_exist() {
    let Some(cluster) = Cluster::new(2) else { return };
    let flags = &["--rdzv-endpoint", ENDPOINT, "--rdzv-interface", "ib0"];
    let done = Job::new(&cluster).flags(1, flags).fail(1, &["ib0", "eth0"]);
    assert!(matches!(done[1].code, Some(2 | 5)), "{:?}", done[1].code);
}

#[test]
fn nodes_with_ipv6_only_run() {
    let Some(cluster) = Cluster::with(Addresses::V6, &[0, 0]) else { return };
    let launches = cluster.start_all("2", &[], WORK);
    cluster.wait_for_workers(0..2, 0);
    cluster.finish_work();
    crate::harness::expect_codes(&cluster.wait(launches), 0);
}

#[test]
fn an_ipv4_address_on_nodes_with_ipv6_only() {
    let Some(cluster) = Cluster::with(Addresses::V6, &[0, 0]) else { return };
    let endpoint = &["--rdzv-endpoint", "10.77.0.1:29500"];
    let done = Job::new(&cluster).flags(1, endpoint).fail(1, &["10.77.0.1:29500", "no route"]);
    expect_code(&done[1], 5);
}

#[test]
fn two_jobs_at_one_port() {
    let Some(cluster) = Cluster::new(2) else { return };
    let ids = ["first", "second"].map(|id| ["--rdzv-endpoint", ENDPOINT, "--rdzv-id", id]);
    let done =
        Job::new(&cluster).flags(0, &ids[0]).flags(1, &ids[1]).fail(1, &["first", "second", "--rdzv-id"]);
    expect_code(&done[1], 5);
}

#[test]
fn the_leaders_port_is_taken_by_another_program() {
    let Some(cluster) = Cluster::new(2) else { return };
    let _other = cluster.network[0].in_thread(|| TcpListener::bind("0.0.0.0:29500").unwrap());
    let words =
        ["this node should lead, but cluster-", "listens at port 29500; end it, or choose another port"];
    expect_code(&Job::new(&cluster).fail(0, &words)[0], 5);
}

/// A program that answers every connection with these bytes, or in silence.
fn answer(cluster: &Cluster, answer: &'static [u8]) {
    let listener = cluster.network[0].in_thread(|| TcpListener::bind("0.0.0.0:29500").unwrap());
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(answer);
            held.push(stream);
        }
    });
}

#[test]
fn the_endpoint_is_another_programs_port() {
    for bytes in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let Some(cluster) = Cluster::new(2) else { return };
        answer(&cluster, bytes);
        let job = Job::new(&cluster).flags(0, &["--rdzv-endpoint", "n0:29501"]);
        let done = job.fail(1, &["n0:29500", "not dtrain"]);
        expect_code(&done[1], 5);
    }
}

#[test]
fn the_endpoint_accepts_and_says_nothing() {
    let Some(cluster) = Cluster::new(2) else { return };
    answer(&cluster, b"");
    let job = Job::new(&cluster).flags(0, &["--rdzv-endpoint", "n0:29501"]);
    let done = job.fail_within(1, &["n0:29500"], None);
    expect_code(&done[1], 5);
}

#[test]
fn the_secrets_differ() {
    let Some(cluster) = Cluster::new(2) else { return };
    write_secret(&cluster.scene.path("other"), "fedcba9876543210fedcba9876543210");
    let secret = |path| ["--rdzv-endpoint", ENDPOINT, "--rdzv-secret", path];
    let done = Job::new(&cluster)
        .flags(0, &secret("secret"))
        .flags(1, &secret("other"))
        .fail(1, &["secret differs"]);
    expect_code(&done[1], 5);
    assert!(done[0].stderr.contains("n1") || done[0].stderr.contains("10.77.0.2"), "{}", done[0].stderr);
}

#[test]
fn one_node_has_no_secret() {
    let Some(cluster) = Cluster::new(2) else { return };
    let secret = ["--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret"];
    let done =
        Job::new(&cluster).flags(0, &secret).fail(1, &["the leader has a secret and the member does not"]);
    expect_code(&done[1], 5);
}

#[test]
fn the_secret_is_readable_by_others_or_absent() {
    let Some(cluster) = Cluster::new(2) else { return };
    fs::set_permissions(cluster.scene.path("secret"), fs::Permissions::from_mode(0o640)).unwrap();
    let secret = |path| ["--rdzv-endpoint", ENDPOINT, "--rdzv-secret", path];
    let job = Job::new(&cluster).flags(0, &secret("secret")).flags(1, &secret("missing"));
    let done = job.fail(0, &["secret", "chmod 600"]);
    done[1].expect_stderr("missing");
    assert!(done.iter().all(|done| matches!(done.code, Some(2 | 5))));
}
