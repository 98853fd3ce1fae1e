#![allow(clippy::unwrap_used)]

use super::*;
use crate::queue::{Element, Reduction};
use crate::segment::{Region, Ticket};
use proptest::prelude::*;
use std::process::{Command, Stdio};

const LONG: Duration = Duration::from_secs(60);

/// One rank: its member and its mapping of the data.
struct Rank {
    member: Member,
    data: Arc<Segment>,
}

impl Rank {
    fn region(&self) -> Region {
        Region::new(&self.data, self.member.shared.control.rank()).unwrap()
    }

    /// Writes the first values of this rank.
    fn write(&self, count: usize) {
        let (region, rank) = (self.region(), self.member.shared.control.rank());
        assert!(count * 4 <= region.bytes());
        for at in 0..count {
            // SAFETY: inside the region, and no operation is in flight.
            unsafe { region.as_ptr().cast::<f32>().add(at).write(value(rank, at)) };
        }
    }

    fn read(&self, count: usize) -> Vec<f32> {
        let region = self.region();
        assert!(count * 4 <= region.bytes());
        // SAFETY: as above.
        (0..count).map(|at| unsafe { region.as_ptr().cast::<f32>().add(at).read() }).collect()
    }

    fn start(&self, collective: Collective, first: usize, count: usize, timeout: Duration) -> Pending {
        let operation = Operation { collective, element: Element::F32, offset: first * 4, count };
        self.member.start(operation, &self.data, timeout).unwrap()
    }
}

const SUM: Collective = Collective::AllReduce(Reduction::Sum);

/// Creates all ranks in this process, each with its own mappings.
fn team(size: usize, floats: usize) -> Vec<Rank> {
    let (control, control_ticket) = Control::create(size).unwrap();
    let (data, data_ticket) = Segment::create(size, floats * 4).unwrap();
    let mut ranks = vec![(control, data)];
    for rank in 1..size {
        let control = Control::open(&control_ticket, rank).unwrap();
        ranks.push((control, Segment::open(&data_ticket).unwrap()));
    }
    let handle = |(control, data): (Control, Segment)| {
        data.reserve(control.rank()).unwrap();
        Rank { member: Member::new(control).unwrap(), data: Arc::new(data) }
    };
    ranks.into_iter().map(handle).collect()
}

fn value(rank: usize, at: usize) -> f32 {
    let mixed = ((rank * 31 + at) as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as f32 * 1e-3 * if mixed.is_multiple_of(2) { 1.0 } else { -1e-4 }
}

fn sum(size: usize, at: usize) -> f32 {
    (1..size).fold(value(0, at), |sum, rank| sum + value(rank, at))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn operations_are_exact_at_any_offset(size in 1usize..5, first in 0usize..50, each in 0usize..20_000) {
        let count = each * size;
        let total = first + count + 7;
        let ranks = team(size, total);
        ranks.iter().for_each(|handle| handle.write(total));
        let run = |collective| {
            let pending: Vec<_> = ranks.iter().map(|handle| handle.start(collective, first, count, LONG)).collect();
            pending.iter().try_for_each(Pending::wait).unwrap();
        };
        let check = |changed: &dyn Fn(usize, usize) -> f32| {
            for (rank, handle) in ranks.iter().enumerate() {
                for (at, got) in handle.read(total).into_iter().enumerate() {
                    let inside = (first..first + count).contains(&at);
                    let wanted = if inside { changed(rank, at) } else { value(rank, at) };
                    assert_eq!(got.to_bits(), wanted.to_bits(), "rank {rank} at {at}");
                }
            }
        };
        run(Collective::ReduceScatter(Reduction::Sum));
        let mine = |rank: usize, at: usize| (at - first) / each.max(1) == rank;
        check(&|rank, at| if mine(rank, at) { sum(size, at) } else { value(rank, at) });
        run(Collective::AllGather);
        check(&|_, at| sum(size, at));
        ranks.iter().for_each(|handle| handle.write(total));
        run(SUM);
        check(&|_, at| sum(size, at));
        ranks.iter().for_each(|handle| handle.write(total));
        run(Collective::Reduce(Reduction::Sum));
        check(&|rank, at| if rank == 0 { sum(size, at) } else { value(rank, at) });
        run(Collective::Broadcast);
        check(&|_, at| sum(size, at));
    }
}

#[test]
fn a_thousand_operations_in_flight_from_ranks_of_different_speed() {
    for size in [2, 3] {
        let ranks = team(size, 16_000);
        std::thread::scope(|scope| {
            for (rank, handle) in ranks.iter().enumerate() {
                scope.spawn(move || {
                    handle.write(16_000);
                    let pending: Vec<_> = (0..1000)
                        .map(|index| {
                            if rank == 1 && index % 100 == 0 {
                                std::thread::sleep(Duration::from_millis(2));
                            }
                            handle.start(SUM, index * 16, 16, LONG)
                        })
                        .collect();
                    for pending in pending.iter().rev() {
                        pending.wait().unwrap();
                        assert_eq!(pending.outcome.get(), Some(&Ok(())));
                    }
                    let got = handle.read(16_000);
                    assert!((0..16_000).all(|at| got[at].to_bits() == sum(size, at).to_bits()));
                });
            }
        });
        for handle in ranks {
            handle.member.close();
        }
    }
}

#[test]
fn nothing_ends_before_the_last_rank_is_ready() {
    let ranks = team(2, 100);
    let early = ranks[0].start(SUM, 0, 100, LONG);
    std::thread::sleep(Duration::from_millis(150));
    assert!(early.outcome.get().is_none());
    let late = ranks[1].start(SUM, 0, 100, LONG);
    late.wait().unwrap();
    early.wait().unwrap();
}

#[test]
fn a_late_rank_is_a_time_out_and_later_operations_fail() {
    let ranks = team(3, 100);
    let limit = Duration::from_millis(250);
    let started = Instant::now();
    let pending: Vec<_> = ranks[..2].iter().map(|handle| handle.start(SUM, 0, 100, limit)).collect();
    for pending in pending {
        let fault = Fault::TimedOut(2, limit);
        assert_eq!(pending.wait(), Err(fault.clone()));
    }
    let waited = started.elapsed();
    assert!(waited >= limit && waited < Duration::from_secs(5), "{waited:?}");
    let next = ranks[0].start(SUM, 0, 100, LONG);
    assert_eq!(next.wait(), Err(Fault::TimedOut(2, limit)));
}

#[test]
fn a_rank_that_leaves_is_detected_immediately() {
    let mut ranks = team(3, 100);
    let before: Vec<_> = ranks.iter().map(|handle| handle.start(SUM, 0, 50, LONG)).collect();
    before.iter().try_for_each(Pending::wait).unwrap();
    let started = Instant::now();
    let pending: Vec<_> = ranks[..2].iter().map(|handle| handle.start(SUM, 0, 100, LONG)).collect();
    drop(ranks.pop());
    for pending in pending {
        assert_eq!(pending.wait(), Err(Fault::PeerLost(2)));
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn dropping_a_member_ends_pending_operations() {
    let mut ranks = team(2, 100);
    let pending = ranks[0].start(SUM, 0, 100, LONG);
    let started = Instant::now();
    drop(ranks.remove(0));
    assert_eq!(pending.wait(), Err(Fault::Stopped));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn closing_completes_started_operations() {
    let mut ranks = team(2, 100);
    let pending: Vec<_> = ranks.iter().map(|handle| handle.start(SUM, 0, 100, LONG)).collect();
    let other = ranks.pop().unwrap();
    let thread = std::thread::spawn(move || other.member.close());
    ranks.pop().unwrap().member.close();
    thread.join().unwrap();
    pending.iter().try_for_each(Pending::wait).unwrap();
}

#[test]
fn ranks_with_different_operations_get_a_mismatch() {
    let ranks = team(2, 100);
    let one = ranks[0].start(SUM, 0, 100, LONG);
    let two = ranks[1].start(SUM, 1, 99, LONG);
    assert_eq!(one.wait(), Err(Fault::Mismatch(1)));
    assert_eq!(two.wait(), Err(Fault::Mismatch(0)));
}

#[test]
fn ranges_outside_the_segment_are_errors_before_the_start() {
    let ranks = team(2, 100);
    let handle = &ranks[0];
    let start = |collective, element, offset, count| {
        let operation = Operation { collective, element, offset, count };
        handle.member.start(operation, &handle.data, LONG)
    };
    for (collective, element, offset, count) in [
        (SUM, Element::F32, 0, 101),
        (SUM, Element::F32, 2, 10),
        (SUM, Element::F64, 4, 2),
        (SUM, Element::F32, 8, usize::MAX / 2),
        (Collective::AllGather, Element::F32, 0, 33),
        (Collective::ReduceScatter(Reduction::Max), Element::F32, 0, 33),
    ] {
        let outcome = start(collective, element, offset, count);
        assert_eq!(outcome.unwrap_err(), Fault::Range, "{collective:?} {element:?} {offset} {count}");
    }
    let (small, _) = Segment::create(1, 400).unwrap();
    let operation = Operation { collective: SUM, element: Element::F32, offset: 0, count: 10 };
    let outcome = handle.member.start(operation, &Arc::new(small), LONG);
    assert_eq!(outcome.unwrap_err(), Fault::Range, "a segment of another team");
    let good: Vec<_> = ranks.iter().map(|handle| handle.start(SUM, 0, 100, LONG)).collect();
    good.iter().try_for_each(Pending::wait).unwrap();
}

/// Is rank 1 when [`a_killed_process_is_detected`] starts this test again; otherwise does nothing.
#[test]
fn run_rank_1_until_killed() {
    let Ok(words) = std::env::var("DTRAIN_TEST_TICKETS") else {
        return;
    };
    let words: Vec<i64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
    let (tickets, _) = words.as_chunks();
    let [control, data] = [tickets[0], tickets[1]].map(Ticket::from_words);
    let data = Segment::open(&data).unwrap();
    data.reserve(1).unwrap();
    let handle =
        Rank { member: Member::new(Control::open(&control, 1).unwrap()).unwrap(), data: Arc::new(data) };
    handle.write(100);
    handle.start(SUM, 0, 100, LONG).wait().unwrap();
    // Rank 0 kills this process while it waits.
    let _ = handle.start(SUM, 0, 100, LONG).wait();
}

#[test]
fn a_killed_process_is_detected() {
    let (control, control_ticket) = Control::create(2).unwrap();
    let (data, data_ticket) = Segment::create(2, 400).unwrap();
    data.reserve(0).unwrap();
    let words: Vec<String> =
        [control_ticket.to_words(), data_ticket.to_words()].concat().iter().map(i64::to_string).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "member::tests::run_rank_1_until_killed"])
        .env("DTRAIN_TEST_TICKETS", words.join(" "))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while !control.is_alive(1) {
        assert!(started.elapsed() < LONG, "rank 1 did not join");
        std::thread::sleep(Duration::from_millis(5));
    }
    let handle = Rank { member: Member::new(control).unwrap(), data: Arc::new(data) };
    handle.write(100);
    handle.start(SUM, 0, 100, LONG).wait().unwrap();
    let got = handle.read(100);
    assert!((0..100).all(|at| got[at].to_bits() == sum(2, at).to_bits()));

    child.kill().unwrap();
    let killed = Instant::now();
    // Rank 1 was ready for one more operation, but cannot have been ready for the second of these two.
    let pending = [handle.start(SUM, 0, 50, LONG), handle.start(SUM, 50, 50, LONG)];
    assert!(matches!(pending[1].wait(), Err(Fault::PeerLost(1) | Fault::Mismatch(1))));
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    child.wait().unwrap();
}
