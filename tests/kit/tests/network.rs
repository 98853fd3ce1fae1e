//! The nodes of a test reach each other, and fail as told.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dtrain_test_kit::network::{Addresses, Network};
use dtrain_test_kit::process::{LONG, Signal, signal, wait_until};

/// Time after which a packet that must not arrive counts as lost.
const PATIENCE: Duration = Duration::from_millis(300);

/// Connects. The first packet may be lost while an interface starts: TCP sends it again after a second.
fn connect(network: &Network, from: usize, to: SocketAddr) -> TcpStream {
    network[from].in_thread(|| TcpStream::connect_timeout(&to, LONG)).unwrap()
}

#[track_caller]
fn assert_unreachable(network: &Network, from: usize, to: SocketAddr) {
    let connection = network[from].in_thread(|| TcpStream::connect_timeout(&to, PATIENCE));
    assert_eq!(connection.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[track_caller]
fn assert_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A read with a time limit ends early if the machine sleeps: `signal(7)`, "Interruption by a stop signal".
    let silence = loop {
        match stream.read(&mut [0]).map_err(|error| error.kind()) {
            Err(ErrorKind::Interrupted) => {}
            end => break end,
        }
    };
    assert_eq!(silence, Err(ErrorKind::WouldBlock));
    stream.set_read_timeout(Some(LONG)).unwrap();
}

fn listen(network: &Network, node: usize) -> (TcpListener, SocketAddr) {
    let listener = network[node].in_thread(|| TcpListener::bind((network[node].address, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Connects node 0 with node 1.
fn pair(network: &Network) -> (TcpStream, TcpStream) {
    let (listener, address) = listen(network, 1);
    let from = connect(network, 0, address);
    let to = listener.accept().unwrap().0;
    for end in [&from, &to] {
        end.set_read_timeout(Some(LONG)).unwrap();
    }
    (from, to)
}

fn output(network: &Network, node: usize, script: &str) -> String {
    let output = network[node].enter(Command::new("sh").args(["-c", script])).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn nodes_have_names_and_interfaces_of_their_own() {
    let Ok(network) = Network::new(3) else { return };
    network.add_second_interface(1);
    let names = "cat /proc/sys/kernel/hostname; getent hosts n2 || grep n2 /etc/hosts; ls /sys/class/net";
    let text = output(&network, 1, names);
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["n1", "10.77.0.3", "n2", "eth0", "eth1", "lo"]);
    assert!(!output(&network, 2, names).contains("eth1"));
}

#[test]
fn a_cut_node_is_silent_until_healed() {
    let Ok(network) = Network::new(3) else { return };
    let (mut from, mut to) = pair(&network);
    let (_listener, address) = listen(&network, 2);
    network.cut(&[1]);
    from.write_all(b"1").unwrap();
    assert_silent(&mut to);
    assert_unreachable(&network, 1, address);
    connect(&network, 0, address);
    network.heal();
    to.read_exact(&mut [0]).unwrap();
    connect(&network, 1, address);
}

#[test]
fn a_reset_ends_connections_at_once() {
    let Ok(network) = Network::new(2) else { return };
    let (mut from, mut to) = pair(&network);
    network[0].reset_connections();
    let mut byte = [0];
    assert_eq!(to.read(&mut byte).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(from.read(&mut byte).unwrap_err().kind(), ErrorKind::ConnectionAborted);
}

#[test]
fn firewalls_lose_packets_by_port_and_by_size() {
    let Ok(network) = Network::new(2) else { return };
    let (_listener, address) = listen(&network, 1);
    network[1].block_ports(address.port()..=address.port());
    assert_unreachable(&network, 0, address);
    network[1].unblock();
    connect(&network, 0, address);

    let (mut from, mut to) = pair(&network);
    network[1].lose_large_packets(1000);
    from.write_all(&[1; 100]).unwrap();
    to.read_exact(&mut [0; 100]).unwrap();
    from.write_all(&[1; 3000]).unwrap();
    assert_silent(&mut to);

    network[0].unblock();
    network[0].set_mtu(600);
    assert_eq!(output(&network, 0, "cat /sys/class/net/eth0/mtu"), "600\n");
}

#[test]
fn nodes_can_have_ipv6_only() {
    let Ok(network) = Network::with(Addresses::V6, &[0, 0]) else { return };
    let (mut from, mut to) = pair(&network);
    to.write_all(b"1").unwrap();
    from.read_exact(&mut [0]).unwrap();
    network[0].reset_connections();
    assert_eq!(to.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(output(&network, 0, "getent ahosts n1 || grep n1 /etc/hosts").contains("fd77::2"));
}

#[test]
fn monotonic_clocks_differ_as_told() {
    let Ok(network) = Network::with(Addresses::V4, &[0, 1_000_000]) else { return };
    let uptime = |node| -> f64 {
        let text = output(&network, node, "cat /proc/uptime");
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    let difference = uptime(1) - uptime(0);
    assert!((999_999.0..1_000_100.0).contains(&difference), "{difference}");
}

#[test]
fn a_command_keeps_its_process_folder_and_variables_and_dies_with_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let Ok(network) = Network::new(1) else { return };
    let mut command = Command::new("sh");
    let script = "echo \"$$ $PWD $A ${HOME-unset}\"; sleep 1000 & wait";
    command.args(["-c", script]).env("A", "a b").env_remove("HOME").current_dir(folder.path());
    let begun = Instant::now();
    let mut child = network[0].enter(&command).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, format!("{} {} a b unset\n", child.id(), folder.path().display()));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    wait_until("the shell's child to run", || network[0].processes().len() == 2);
    let pids = network[0].processes();
    assert!(pids.contains(&child.id()));

    signal(child.id(), Signal::TERM);
    assert!(!child.wait().unwrap().success());
    assert_eq!(network[0].processes().len(), 1, "the orphan is still seen");
    drop(network);
    let remaining = pids.iter().find(|pid| std::path::Path::new(&format!("/proc/{pid}/exe")).exists());
    assert_eq!(remaining, None);
}
