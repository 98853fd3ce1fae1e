//! Strangers of all kinds for minutes, while members exchange beats.

use super::super::handshake::Handshake;
use super::harness::{Leader, Member, SECRET, finish, secret};
use super::*;
use std::collections::HashMap;
use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Makes one connection of a kind; keeps it in `open` if it must stay.
fn disturb(kind: u64, leader: SocketAddr, record: &[u8], open: &mut Vec<TcpStream>) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(leader)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let (_, greeting) = Handshake::begin(&secret(SECRET)).unwrap();
    match kind {
        0 => return Ok(()),
        1 => socket.write_all(b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n")?,
        2 => socket.write_all(&Handshake::begin(&secret("a wrong secret of a stranger")).unwrap().1)?,
        3 => socket.write_all(&Handshake::begin(&Secret::none()).unwrap().1)?,
        4 => socket.write_all(record)?,
        5 => {
            let mut random = [0; 4096];
            std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
            socket.write_all(&greeting[..usize::from(random[0]) % greeting.len()])?;
            socket.write_all(&random)?;
        }
        6 => {
            socket.write_all(&greeting)?;
            open.push(socket.try_clone()?);
        }
        _ => open.push(socket.try_clone()?),
    }
    if kind < 6 {
        // The leader may close it before it has read everything.
        let _ = socket.read_to_end(&mut Vec::new());
    }
    Ok(())
}

/// Exchanges bytes between two threads for this time, without the wire: the delays of the machine.
fn control(time: Duration) -> Vec<Duration> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut other = listener.accept().unwrap().0;
    thread::spawn(move || {
        let mut byte = [0];
        while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
    });
    let began = Instant::now();
    let mut delays = Vec::new();
    while began.elapsed() < time {
        thread::sleep(Duration::from_millis(200));
        let sent = Instant::now();
        one.write_all(&[0]).unwrap();
        one.read_exact(&mut [0]).unwrap();
        delays.push(sent.elapsed());
    }
    delays
}

#[test]
#[ignore = "disturbs for minutes: DTRAIN_SOAK=seconds cargo test ... -- --ignored --nocapture"]
fn strangers_disturb_no_member() {
    let time = Duration::from_secs(env::var("DTRAIN_SOAK").map_or(60, |time| time.parse().unwrap()));
    let key = secret(SECRET);
    let leader = Leader::new(&key);
    let address = leader.address;
    let mut socket = TcpStream::connect(address).unwrap();
    let (handshake, mut record) = Handshake::begin(&key).unwrap();
    socket.write_all(&record).unwrap();
    let frames = finish(handshake, &mut socket).frame(b"\"replay\"");
    socket.write_all(&frames).unwrap();
    record.extend(frames);
    drop(socket);
    let over = AtomicBool::new(false);
    let made: [AtomicU64; 8] = Default::default();
    let mut delays: Vec<Duration> = Vec::new();
    let (mut opened, mut reports) = (0, HashMap::new());
    let controls: Vec<_> = (0..3).map(|_| thread::spawn(move || control(time))).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = Vec::new();
            for kind in (0..8).cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
                if disturb(kind, address, &record, &mut open).is_ok() {
                    made[kind as usize].fetch_add(1, Ordering::Relaxed);
                }
                // Slow peers: each byte comes late.
                if kind == 7
                    && let Some(slow) = open.last_mut()
                {
                    let _ = slow.write_all(b"d");
                }
                if open.len() > 600 {
                    open.drain(..100);
                }
            }
        });
        let members: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let member = Member::at("127.0.0.1", address.port(), &secret(SECRET));
                    member.expect_connected();
                    let began = Instant::now();
                    let mut delays = Vec::new();
                    while began.elapsed() < time {
                        thread::sleep(Duration::from_millis(200));
                        let sent = Instant::now();
                        member.client.send(&"beat".to_owned()).unwrap();
                        assert_eq!(member.expect_message(), "beat");
                        delays.push(sent.elapsed());
                    }
                    delays
                })
            })
            .collect();
        while !members.iter().all(thread::ScopedJoinHandle::is_finished) {
            match leader.events.recv_timeout(Duration::from_millis(100)) {
                Ok(ServerEvent::Received { id, message }) => leader.server.send(id, &message).unwrap(),
                Ok(ServerEvent::Opened { .. }) => opened += 1,
                Ok(ServerEvent::Stranger { reason, .. }) => *reports.entry(reason).or_insert(0) += 1,
                _ => {}
            }
        }
        over.store(true, Ordering::Relaxed);
        members.into_iter().for_each(|member| delays.extend(member.join().unwrap()));
    });
    delays.sort_unstable();
    let controls = controls.into_iter().flat_map(|control| control.join().unwrap());
    let control = controls.max().unwrap();
    println!("longest delay without the wire: {control:?}");
    let made: Vec<u64> = made.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    println!("{} connections of strangers by kind: {made:?}", made.iter().sum::<u64>());
    println!("reports: {reports:?}");
    let at = |part: f64| delays[((delays.len() - 1) as f64 * part) as usize];
    println!(
        "{} beats and answers: median {:?}, 99 % {:?}, longest {:?}",
        delays.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    // The recorded connection, and three members.
    assert_eq!(opened, 4);
    assert!(reports.values().all(|count| *count == 1));
    assert!(at(1.0) < Duration::from_millis(100).max(2 * control));
}
