#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use self::fake::{FakeStream, FakeTimeline};
use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

fn nccl() -> Nccl {
    Nccl(Box::leak(Box::new(fake::api())))
}

fn join(
    nccl: &Nccl,
    unique_id: &UniqueId,
    config: RankConfig,
    lost_peer: Option<LostPeer>,
) -> Result<NcclGroup, CollectiveError> {
    let timeline = Arc::new(FakeTimeline(FakeStream::leaked()));
    let connecting = Operation::connecting(config.rank, config.timeout);
    let communicator = Communicator::connect(nccl.0, unique_id, config.size, connecting)?;
    NcclGroup::from_communicator(communicator, config, Device::Cpu, timeline, lost_peer)
}

fn ranks(size: usize, body: impl Fn(NcclGroup, &UniqueId) + Sync) {
    let nccl = nccl();
    let unique_id = nccl.create_unique_id().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (nccl, unique_id, body) = (&nccl, &unique_id, &body);
            scope.spawn(move || {
                let timeout = TIMEOUT;
                body(join(nccl, unique_id, RankConfig { rank, size, timeout }, None).unwrap(), unique_id);
            });
        }
    });
}

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn read(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn every_operation_works_at_one_two_and_three_ranks() {
    for size in 1..=3 {
        ranks(size, |group, _| {
            let (rank, n) = (group.rank(), size as f32);
            assert_eq!(group.size(), size);
            let own = rank as f32 + 1.0;

            let sum = floats(&[own, 10.0 * own]);
            let work = group.all_reduce(&sum, ReduceOp::Sum).unwrap();
            work.wait().unwrap();
            let all = n * (n + 1.0) / 2.0;
            assert_eq!(read(&sum), [all, 10.0 * all]);
            let max = floats(&[own]);
            group.all_reduce(&max, ReduceOp::Max).unwrap().wait().unwrap();
            assert_eq!(read(&max), [n]);

            let last = size - 1;
            let (one, none, two) = (floats(&[own]), floats(&[]), floats(&[own, -own]));
            let all = [&one, &none, &two].map(|tensor| Collective::Broadcast(tensor, last));
            group.start_all(&all).unwrap().wait().unwrap();
            assert_eq!((read(&one), read(&two)), (vec![n], vec![n, -n]));

            // In place, as in sharded updates.
            let whole = Tensor::arange(2 * size as i64, (Kind::Float, Device::Cpu));
            let part = whole.narrow(0, 2 * rank as i64, 2);
            group.reduce_scatter(&part, &whole, ReduceOp::Sum).unwrap().wait().unwrap();
            let first = 2.0 * rank as f32;
            assert_eq!(read(&part), [n * first, n * (first + 1.0)]);
            group.all_gather(&whole, &part).unwrap().wait().unwrap();
            let expected: Vec<f32> = (0..2 * size).map(|index| n * index as f32).collect();
            assert_eq!(read(&whole), expected);

            // A second group has an independent order.
            let second = group.split().unwrap();
            let count = Tensor::from_slice(&[rank as i64]);
            second.all_reduce(&count, ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(i64::try_from(&count).unwrap(), (size * (size - 1) / 2) as i64);
            Box::new(second).shutdown().unwrap();

            group.barrier().unwrap().wait().unwrap();
            group.health().unwrap();
            Box::new(group).shutdown().unwrap();
        });
    }
}

#[test]
fn unsuitable_tensors_are_errors_before_anything_is_sent() {
    ranks(1, |group, _| {
        let wrong = |result: Result<Box<dyn Work>, CollectiveError>| match result {
            Err(CollectiveError::InvalidTensor(_, reason)) => reason,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("no error"),
        };
        let tensor = floats(&[1.0, 2.0, 3.0, 4.0]);
        assert!(wrong(group.broadcast(&tensor, 1)).contains("rank 1 does not exist"));
        let all = [Collective::AllReduce(&tensor, ReduceOp::Sum), Collective::Broadcast(&tensor, 7)];
        let launches = fake::launches();
        assert!(wrong(group.start_all(&all)).contains("rank 7 does not exist"));
        assert_eq!(fake::launches(), launches);
        let transposed = tensor.view([2, 2]).tr();
        assert!(wrong(group.all_reduce(&transposed, ReduceOp::Sum)).contains("not contiguous"));
        assert!(wrong(group.all_gather(&tensor, &floats(&[1.0]))).contains("4 elements are not 1 ranks x 1"));
    });
}

#[test]
fn a_split_that_a_rank_does_not_join_is_a_time_out() {
    let timed_out = std::sync::Barrier::new(2);
    ranks(2, |mut group, _| {
        if group.rank() == 1 {
            timed_out.wait();
            // Now the other rank's split completes: NCCL's thread writes to buffers that are no longer used.
            group.split().unwrap();
            return;
        }
        group.set_timeout(Duration::from_millis(100));
        let error = group.split().err().unwrap();
        timed_out.wait();
        let text = error.to_string();
        assert!(
            matches!(error, CollectiveError::TimedOut(operation, _) if operation.op == "connect"),
            "{text}"
        );
        assert_eq!(group.health().unwrap_err().to_string(), text);
    });
}

#[test]
fn operations_started_together_are_one_launch() {
    ranks(2, |group, _| {
        let (rank, own) = (group.rank() as i64, group.rank() as f32 + 1.0);
        let (sum, max, count) = (floats(&[own, -own]), floats(&[own]), Tensor::from_slice(&[rank]));
        let (whole, gathered) = (floats(&[own, 10.0 * own]), floats(&[0.0, 0.0]));
        let part = whole.narrow(0, rank, 1);
        let all = [
            Collective::AllReduce(&sum, ReduceOp::Sum),
            Collective::AllReduce(&max, ReduceOp::Max),
            Collective::AllReduce(&count, ReduceOp::Sum),
            Collective::ReduceScatter { output: &part, input: &whole, op: ReduceOp::Sum },
            Collective::AllGather { output: &gathered, input: &max.copy() },
        ];
        let launches = fake::launches();
        group.start_all(&all).unwrap().wait().unwrap();
        assert_eq!(fake::launches(), launches + 1);
        assert_eq!((read(&sum), read(&max)), (vec![3.0, -3.0], vec![2.0]));
        assert_eq!(count.int64_value(&[0]), 1);
        assert_eq!(read(&part), [[3.0], [30.0]][rank as usize]);
        assert_eq!(read(&gathered), [1.0, 2.0]);
        group.start_all(&[]).unwrap().wait().unwrap();
        assert_eq!(fake::launches(), launches + 1, "no operation is no launch");
    });
}

#[test]
fn a_call_that_is_ready_immediately_never_sleeps() {
    ranks(2, |group, _| {
        fake::launch_immediately();
        let sleeps = fake::sleeps();
        let tensor = floats(&[1.0]);
        for _ in 0..20 {
            group.all_reduce(&tensor, ReduceOp::Sum).unwrap().wait().unwrap();
        }
        assert_eq!(fake::sleeps(), sleeps);
    });
}

/// Returns the error with which the group ends, and the time until then.
fn end(group: &NcclGroup) -> (CollectiveError, Duration) {
    let started = Instant::now();
    loop {
        if let Err(error) = group.health() {
            return (error, started.elapsed());
        }
        assert!(started.elapsed() < TIMEOUT, "the group did not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_operation_beyond_its_time_out_ends_the_group_and_is_named() {
    ranks(2, |mut group, _| {
        group.set_timeout(Duration::from_millis(300));
        let tensor = floats(&[1.0, 2.0, 3.0]);
        group.all_reduce(&tensor, ReduceOp::Sum).unwrap().wait().unwrap();
        if group.rank() == 1 {
            // This rank hangs.
            std::thread::sleep(Duration::from_millis(900));
            return;
        }
        let _work = group.all_reduce(&tensor, ReduceOp::Sum).unwrap();
        let (error, after) = end(&group);
        let text = error.to_string();
        assert!(
            text.contains("all_reduce number 2 on rank 0: time-out after 300ms") && text.contains("12 bytes"),
            "{text}"
        );
        assert!(after < Duration::from_millis(800), "{after:?}");
        // Later calls return the same error, and nothing waits, not even the device.
        let again = group.all_reduce(&tensor, ReduceOp::Sum).err().unwrap();
        assert_eq!(again.to_string(), text);
        group.timeline.mark().unwrap().block_current_stream().unwrap();
    });
}

#[test]
fn a_peer_that_dies_ends_the_group() {
    ranks(2, |group, unique_id| {
        let barrier = group.barrier().and_then(|work| work.wait());
        if group.rank() == 1 {
            // The other rank may get the error while it still leaves the barrier.
            barrier.unwrap();
            fake::kill_peer(unique_id);
        }
        let (error, _) = end(&group);
        let text = error.to_string();
        assert!(matches!(error, CollectiveError::PeerLost { .. }), "{text}");
        assert!(text.contains("NCCL: remote process exited"), "{text}");
    });
}

/// NCCL waits for it without an error.
#[test]
fn a_rank_that_the_host_group_misses_ends_the_group() {
    let nccl = nccl();
    let unique_id = nccl.create_unique_id().unwrap();
    let config = |rank| RankConfig { rank, size: 2, timeout: TIMEOUT };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let group = join(&nccl, &unique_id, config(1), None).unwrap();
            group.barrier().unwrap().wait().unwrap();
        });
        let is_gone = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_gone);
        let lost_peer: LostPeer = Arc::new(move || seen.load(Ordering::SeqCst).then_some(1));
        let group = join(&nccl, &unique_id, config(0), Some(lost_peer)).unwrap();
        group.barrier().unwrap().wait().unwrap();
        is_gone.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        assert!(group.health().is_ok(), "no operation waits for the rank");
        let tensor = floats(&[1.0]);
        let _work = group.all_reduce(&tensor, ReduceOp::Sum).unwrap();
        let text = end(&group).0.to_string();
        assert!(text.contains("all_reduce number 2 on rank 0"), "{text}");
        assert!(text.contains("rank 1 ended or left the group"), "{text}");
    });
}

#[test]
fn a_rank_that_does_not_connect_is_a_time_out() {
    let nccl = nccl();
    let config = RankConfig { rank: 0, size: 2, timeout: Duration::from_millis(100) };
    let error = join(&nccl, &nccl.create_unique_id().unwrap(), config, None).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, CollectiveError::TimedOut(operation, _) if operation.op == "connect"), "{text}");
    assert_eq!(nccl.version(), Version(fake::VERSION));
}
