//! Faults of the network: launch and doctor name the cause and the remedy within two seconds.
//!
//! If several causes look the same from a node, such as a firewall and a machine that is down, it names them all.

use crate::harness::{Cluster, ENDPOINT, Finished, Launch, WORK, write_secret};
use dtrain_test_kit::network::Addresses;
use dtrain_test_kit::programs;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// The time in which a fault that can be known at once is named, on a busy machine.
const SOON: Duration = Duration::from_secs(2);

/// The doctor prints no line when it begins to join: the start of a debug build on a busy machine counts too.
const DOCTORS_START: Duration = Duration::from_millis(3000);

/// A job whose first node is `n0`; each node's flags may differ.
struct Job<'a> {
    cluster: &'a Cluster,
    /// Flags of each node, which follow those of all.
    flags: Vec<Vec<&'a str>>,
}

impl<'a> Job<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let nodes = cluster.network.nodes().len();
        Self { cluster, flags: vec![vec!["--rdzv-endpoint", ENDPOINT]; nodes] }
    }

    fn flags(mut self, node: usize, flags: &[&'a str]) -> Self {
        self.flags[node] = flags.to_vec();
        self
    }

    /// Runs the launchers, then the doctors, and fails if `words` are not in time in the output of `node`. Returns
    /// how the launchers ended.
    #[track_caller]
    fn fail(self, node: usize, words: &[&str]) -> Vec<Finished> {
        let nnodes = self.flags.len().to_string();
        let common = ["--nnodes", &nnodes, "--rdzv-conf", "join_timeout=4"];
        let start = |(node, flags): (usize, &Vec<&str>)| {
            let program = ["--", "sh", "-c", WORK];
            self.cluster.start_with(node, &[&common[..], flags, &program].concat())
        };
        let done = self.expect_words("launch", start, SOON, node, words);
        let start = |(node, flags): (usize, &Vec<&str>)| {
            let command = self.cluster.scene.adapt(Command::new(programs::dtrain()), &["doctor"]);
            let command = command.into_command(&[&common[..], flags].concat());
            let command = self.cluster.network[node].enter(&command);
            self.cluster.scene.start_as(&format!(".d{node}"), command)
        };
        let doctors = self.expect_words("doctor", start, SOON + DOCTORS_START, node, words);
        assert_ne!(doctors[node].code, Some(0), "{doctors:?}");
        done
    }

    #[track_caller]
    fn expect_words(
        &self,
        what: &str,
        start: impl Fn((usize, &Vec<&str>)) -> Launch<'a>,
        limit: Duration,
        node: usize,
        words: &[&str],
    ) -> Vec<Finished> {
        let mut begun = Instant::now();
        let mut launches: Vec<_> = self.flags.iter().enumerate().map(start).collect();
        // The doctor's table wraps lines.
        let is_in = |text: &str| {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            words.iter().all(|word| text.contains(word))
        };
        let (mut has_begun, mut named) = (false, None);
        while launches.iter_mut().any(|launch| launch.child.try_wait().unwrap().is_none()) {
            let text = launches[node].stderr() + &launches[node].stdout();
            if !has_begun && text.contains("the run at") {
                (has_begun, begun) = (true, Instant::now());
            }
            if named.is_none() && is_in(&text) {
                named = Some(begun.elapsed());
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{what} does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Processes that end at once are never seen running.
        let at_the_end = begun.elapsed();
        let done = self.cluster.wait(launches);
        let text = |done: &Finished| format!("{:?}\n{}\n{}\n", done.code, done.stderr, done.stdout());
        let all: String = done.iter().map(text).collect();
        assert!(is_in(&text(&done[node])), "{what}: {words:?} are not on n{node}:\n{all}");
        let named = named.unwrap_or(at_the_end);
        println!("{what} named {words:?} after {named:.2?}");
        assert!(named < limit, "{what}: {words:?} came after {named:?}:\n{all}");
        done
    }
}

#[test]
fn an_unresolvable_endpoint() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let job = Job::new(&cluster).flags(1, &["--rdzv-endpoint", "head:29500"]);
    job.fail(1, &["head", "cannot be resolved"])[1].expect_code(5);
}

#[test]
fn nothing_listens_at_the_endpoint() {
    let Ok(cluster) = Cluster::new(2) else { return };
    // Node 0 waits at another port.
    let job = Job::new(&cluster).flags(0, &["--rdzv-endpoint", "n0:29501"]);
    job.fail(1, &["n0:29500", "no process listens"])[1].expect_code(5);
}

#[test]
fn the_endpoints_host_is_down() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network.cut(&[0]);
    // A machine that is down looks like a firewall.
    let done = Job::new(&cluster).fail(1, &["n0:29500", "does not answer"]);
    done[1].expect_code(5);
    // The leader knows only who came.
    done[0].expect_code(5).expect_stderr("only 1 of 2 nodes joined in time (n0)");
}

#[test]
fn a_firewall_closes_the_endpoints_port() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network[0].block_ports(29500..=29500);
    let done = Job::new(&cluster).fail(1, &["n0:29500", "firewall"]);
    done[1].expect_code(5);
    done[0].expect_code(5);
}

#[test]
fn a_firewall_on_the_other_node_closes_the_workers_ports() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network[1].block_ports(1..=65535);
    // Replies to connections that node 1 opens come to its automatic ports: leave those of the endpoint open.
    Job::new(&cluster).fail(1, &["n0:29500", "does not answer"])[1].expect_code(5);
}

#[test]
fn the_endpoint_is_an_address_of_no_node() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let endpoint = &["--rdzv-endpoint", "10.77.0.99:29500"];
    let done = Job::new(&cluster).flags(0, endpoint).flags(1, endpoint).fail(0, &["10.77.0.99:29500"]);
    done[0].expect_code(5);
    done[1].expect_code(5);
}

#[test]
fn the_endpoint_is_the_loopback_interface() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let endpoint = &["--rdzv-endpoint", "localhost:29500"];
    let done = Job::new(&cluster)
        .flags(0, endpoint)
        .flags(1, endpoint)
        .fail(0, &["only agents of this machine can join at localhost:29500"]);
    assert!(done.iter().all(|done| matches!(done.code, Some(2 | 5))));
}

#[test]
fn the_endpoints_name_is_a_loopback_address_on_its_own_node() {
    let Ok(cluster) = Cluster::new(2) else { return };
    // As in Debian's /etc/hosts. The leader must listen where others reach it.
    let hosts = cluster.network[0].hosts();
    let text = fs::read_to_string(&hosts).unwrap().replace("10.77.0.1 n0", "127.0.1.1 n0");
    fs::write(hosts, text).unwrap();
    cluster.finish(cluster.work(&[]));
}

#[test]
fn the_endpoints_name_has_the_address_of_another_network() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network.add_second_interface(0);
    cluster.network.add_second_interface(1);
    let hosts = cluster.network[1].hosts();
    let text = fs::read_to_string(&hosts).unwrap().replace("10.77.0.1 n0", "192.168.77.1 n0");
    fs::write(hosts, text).unwrap();
    Job::new(&cluster).fail(1, &["n0:29500", "192.168.77.1"])[1].expect_code(5);
}

#[test]
fn the_interface_of_the_user_reaches_nobody() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network.add_second_interface(0);
    cluster.network.add_second_interface(1);
    let flags = &["--rdzv-endpoint", ENDPOINT, "--rdzv-interface", "eth1"];
    let done = Job::new(&cluster).flags(0, flags).flags(1, flags).fail(1, &["n0:29500", "from 192.168.77.2"]);
    assert!(matches!(done[1].code, Some(2 | 5)), "{:?}", done[1].code);
}

#[test]
fn the_interface_of_the_user_does_not_exist() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let flags = &["--rdzv-endpoint", ENDPOINT, "--rdzv-interface", "ib0"];
    let done = Job::new(&cluster).flags(1, flags).fail(1, &["ib0", "eth0"]);
    assert!(matches!(done[1].code, Some(2 | 5)), "{:?}", done[1].code);
}

#[test]
fn nodes_with_ipv6_only_run() {
    let Ok(cluster) = Cluster::with(Addresses::V6, &[0, 0]) else { return };
    cluster.finish(cluster.work(&[]));
}

#[test]
fn an_ipv4_address_on_nodes_with_ipv6_only() {
    let Ok(cluster) = Cluster::with(Addresses::V6, &[0, 0]) else { return };
    let endpoint = &["--rdzv-endpoint", "10.77.0.1:29500"];
    Job::new(&cluster).flags(1, endpoint).fail(1, &["10.77.0.1:29500", "no route"])[1].expect_code(5);
}

#[test]
fn two_jobs_at_one_port() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let ids = ["first", "second"].map(|id| ["--rdzv-endpoint", ENDPOINT, "--rdzv-id", id]);
    let done =
        Job::new(&cluster).flags(0, &ids[0]).flags(1, &ids[1]).fail(1, &["first", "second", "--rdzv-id"]);
    done[1].expect_code(5);
}

#[test]
fn the_leaders_port_is_taken_by_another_program() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let _other = cluster.network[0].in_thread(|| TcpListener::bind("0.0.0.0:29500").unwrap());
    let words =
        ["this node should lead, but cluster-", "listens at port 29500; end it, or choose another port"];
    Job::new(&cluster).fail(0, &words)[0].expect_code(5);
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
        let Ok(cluster) = Cluster::new(2) else { return };
        answer(&cluster, bytes);
        let job = Job::new(&cluster).flags(0, &["--rdzv-endpoint", "n0:29501"]);
        job.fail(1, &["n0:29500", "not dtrain"])[1].expect_code(5);
    }
}

#[test]
fn the_endpoint_accepts_and_says_nothing() {
    let Ok(cluster) = Cluster::new(2) else { return };
    answer(&cluster, b"");
    let job = Job::new(&cluster).flags(0, &["--rdzv-endpoint", "n0:29501"]);
    job.fail(1, &["n0:29500", "does not answer"])[1].expect_code(5);
}

#[test]
fn the_secrets_differ() {
    let Ok(cluster) = Cluster::new(2) else { return };
    write_secret(&cluster.scene.path("other"), "fedcba9876543210fedcba9876543210");
    let secret = |path| ["--rdzv-endpoint", ENDPOINT, "--rdzv-secret", path];
    let done = Job::new(&cluster)
        .flags(0, &secret("secret"))
        .flags(1, &secret("other"))
        .fail(1, &["secret differs"]);
    done[1].expect_code(5);
    assert!(done[0].stderr.contains("n1") || done[0].stderr.contains("10.77.0.2"), "{}", done[0].stderr);
}

#[test]
fn one_node_has_no_secret() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let secret = ["--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret"];
    let done =
        Job::new(&cluster).flags(0, &secret).fail(1, &["the leader has a secret and the member does not"]);
    done[1].expect_code(5);
}

#[test]
fn the_secret_is_readable_by_others_or_absent() {
    let Ok(cluster) = Cluster::new(2) else { return };
    fs::set_permissions(cluster.scene.path("secret"), fs::Permissions::from_mode(0o640)).unwrap();
    let secret = |path| ["--rdzv-endpoint", ENDPOINT, "--rdzv-secret", path];
    let job = Job::new(&cluster).flags(0, &secret("secret")).flags(1, &secret("missing"));
    let done = job.fail(0, &["secret", "chmod 600"]);
    done[1].expect_stderr("missing");
    assert!(done.iter().all(|done| matches!(done.code, Some(2 | 5))));
}

#[test]
fn a_firewall_closes_the_workers_ports_only() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network[0].block_ports(1..=29499);
    cluster.network[0].block_ports(29501..=65535);
    Job::new(&cluster).fail(0, &["n1 -> n0", "firewall"])[0].expect_code(5);
}

#[test]
fn large_packets_are_lost() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network[1].lose_large_packets(1000);
    Job::new(&cluster).fail(0, &["n0 -> n1", "n1 -> n0", "MTU"])[0].expect_code(5);
}

#[test]
fn a_firewall_closes_the_master_port_only() {
    let Ok(cluster) = Cluster::new(2) else { return };
    cluster.network[0].block_ports(20_000..=29_499);
    cluster.network[0].block_ports(29_501..=32_767);
    let words = ["n1 -> n0", "a firewall blocks some ports", "open the TCP ports 20000 to 32767 of n0"];
    Job::new(&cluster).fail(0, &words)[1].expect_code(5);
}

#[test]
fn a_node_whose_connections_fail_is_left_out() {
    let Ok(cluster) = Cluster::new(3) else { return };
    cluster.network[2].lose_large_packets(1000);
    let launches = cluster.start_all("2:3", &["--rdzv-conf", "last_call_timeout=1"], "exit 0");
    let done = cluster.wait(launches);
    done[0].expect_code(0).expect_stderr("n2 is left out: connections between the nodes fail");
    done[1].expect_code(0);
    done[2].expect_code(5);
}
