//! A leader in a separate process, under load.

use super::harness::{Leader, Member};
use super::*;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

/// A process with a leader that returns each message.
struct Echo {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Echo {
    /// `limit` is a command of the shell.
    fn start(limit: &str) -> Self {
        let mut process = Command::new("sh")
            .args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "io::wire::tests::load::echo", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let mut echo = Self { process, input, output: BufReader::new(output), address };
        echo.address = echo.answer("address").parse().unwrap();
        echo
    }

    fn answer(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the leader has ended");
            if let Some((_, answer)) = line.split_once(&format!("{question}: ")) {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn member(&self) -> Member {
        Member::at("127.0.0.1", self.address.port(), &Secret::none())
    }

    /// The CPU time in milliseconds, of 10 each.
    fn cpu(&mut self) -> u64 {
        self.answer("cpu").parse().unwrap()
    }

    fn memory_kib(&mut self) -> i64 {
        self.answer("memory").parse().unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "other tests run it"]
fn echo() {
    let leader = Leader::new(&Secret::none());
    let address = leader.address;
    thread::spawn(move || {
        for event in &leader.events {
            if let ServerEvent::Received { id, message } = event {
                leader.server.send(id, &message).unwrap();
            }
        }
    });
    for question in stdin().lines().map(Result::unwrap) {
        let answer = match &*question {
            "address" => address.to_string(),
            "cpu" => {
                let stat = fs::read_to_string("/proc/self/stat").unwrap();
                let mut times = stat.rsplit(") ").next().unwrap().split(' ').skip(11);
                let mut next = || times.next().unwrap().parse::<u64>().unwrap();
                ((next() + next()) * 10).to_string()
            }
            _ => {
                let status = fs::read_to_string("/proc/self/status").unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
                line.trim().trim_end_matches(" kB").to_owned()
            }
        };
        println!("{question}: {answer}");
    }
}

fn beat(member: &Member, number: usize) -> Duration {
    let sent = Instant::now();
    member.client.send(&number.to_string()).unwrap();
    assert_eq!(member.expect_message(), number.to_string());
    sent.elapsed()
}

#[test]
fn too_many_open_files_do_not_disturb_members() {
    let mut echo = Echo::start("ulimit -n 40");
    let member = echo.member();
    member.expect_connected();
    beat(&member, 0);
    let before = echo.cpu();
    let began = Instant::now();
    let mut idle: Vec<TcpStream> = Vec::new();
    for number in 1..100 {
        idle.push(TcpStream::connect(echo.address).unwrap());
        let time = beat(&member, number);
        assert!(time < Duration::from_millis(500), "{time:?}");
        thread::sleep(Duration::from_millis(5));
    }
    let late = echo.member();
    late.expect_connected();
    beat(&late, 100);
    let (used, time) = (echo.cpu() - before, began.elapsed());
    assert!(u128::from(used) < time.as_millis() / 2, "{used} ms CPU of {time:?}");
}

#[test]
#[ignore = "measures for a minute: DTRAIN_MEMBERS=100 cargo test ... -- --ignored --nocapture"]
fn idle_members_cost_little() {
    let count: usize = env::var("DTRAIN_MEMBERS").map_or(100, |count| count.parse().unwrap());
    let mut echo = Echo::start("true");
    let one = echo.member();
    one.expect_connected();
    beat(&one, 0);
    drop(one);
    let memory = echo.memory_kib();
    let began = Instant::now();
    let members: Vec<Member> = (0..count).map(|_| echo.member()).collect();
    let mut failed = 0;
    for member in &members {
        while let event = member.next()
            && !matches!(event, ClientEvent::Connected { .. })
        {
            failed += 1;
        }
    }
    println!("{count} members connected in {:?}; {failed} attempts failed", began.elapsed());
    println!("memory of the leader: {memory} KiB, then {} more", echo.memory_kib() - memory);
    let cpu = echo.cpu();
    let began = Instant::now();
    let period = Duration::from_millis(200);
    let mut delays = Vec::new();
    for round in 0..150_u32 {
        for (number, member) in members.iter().enumerate() {
            let due = began + period * round + period * number as u32 / count as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // Each member sends its beat and takes the answer to the one before.
            if round > 0 {
                member.expect_message();
            }
            if number == 0 && round > 0 {
                delays.push(beat(member, 1));
            }
            member.client.send(&"beat".to_owned()).unwrap();
        }
    }
    let (used, time) = (echo.cpu() - cpu, began.elapsed());
    delays.sort_unstable();
    println!(
        "CPU of the leader: {:.2} % of a core over {time:?}",
        used as f64 * 100.0 / time.as_millis() as f64
    );
    println!(
        "a beat and its answer: median {:?}, longest {:?}",
        delays[delays.len() / 2],
        delays.last().unwrap()
    );
    println!("memory after the beats: {} more", echo.memory_kib() - memory);
}
