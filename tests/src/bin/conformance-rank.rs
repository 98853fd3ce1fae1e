//! One rank of the conformance suite: `conformance-rank (single|gloo) (suite|peer-dies|time-out)`.

use std::time::{Duration, Instant};

use dtrain_common::env::WorkerEnv;
use dtrain_worker::collectives::{CollectiveError, ProcessGroup, ReduceOp, Rendezvous, SingleGroup, Work};
use tch::{Device, Kind, Tensor};

const KINDS: [Kind; 8] = [
    Kind::Float,
    Kind::Double,
    Kind::Half,
    Kind::BFloat16,
    Kind::Int64,
    Kind::Int,
    Kind::Int8,
    Kind::Uint8,
];

/// Empty, one, odd and even, and one that takes several segments of a ring.
const SIZES: [i64; 7] = [0, 1, 3, 8, 1000, 4097, 262_147];

type Group = Box<dyn ProcessGroup>;
type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    dtrain_torch_shim::quiet_logs()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [backend, scenario] = args.as_slice() else {
        return Err("two arguments are needed".into());
    };
    let env = WorkerEnv::from_process()?;
    let rendezvous;
    let group: Group = match backend.as_str() {
        "single" => Box::new(SingleGroup),
        "gloo" => {
            rendezvous = Gloo::open(env)?;
            rendezvous.connect()?
        }
        other => return Err(format!("no backend {other}").into()),
    };
    match scenario.as_str() {
        "suite" => suite(group),
        "peer-dies" => peer_dies(group),
        "time-out" => time_out(group),
        other => Err(format!("no scenario {other}").into()),
    }
}

/// A Gloo group also for a single rank, which the rendezvous would give a single-process group.
enum Gloo {
    One(dtrain_torch_shim::store::TcpStore),
    Many(Rendezvous),
}

impl Gloo {
    fn open(env: WorkerEnv) -> Result<Self, Failure> {
        if env.world_size == 1 {
            let store = dtrain_torch_shim::store::TcpStore::serve("127.0.0.1", 0, Duration::from_secs(30))?;
            return Ok(Self::One(store));
        }
        Ok(Self::Many(Rendezvous::open(env)?))
    }

    fn connect(&self) -> Result<Group, Failure> {
        use dtrain_torch_shim::gloo::Transport;
        match self {
            Self::One(store) => Ok(Box::new(dtrain_worker::collectives::GlooGroup::connect(
                store,
                0,
                1,
                Duration::from_secs(30),
                Transport::Host("127.0.0.1"),
            )?)),
            Self::Many(rendezvous) => Ok(rendezvous.connect()?),
        }
    }
}

fn suite(group: Group) -> Result<(), Failure> {
    let g = group.as_ref();
    for kind in KINDS {
        for size in SIZES {
            all_reduce(g, kind, size)?;
            broadcast(g, kind, size)?;
            all_gather(g, kind, size)?;
            reduce_scatter(g, kind, size)?;
        }
        println!("ok {kind:?}");
    }
    shapes(g)?;
    same_bits(g)?;
    in_flight(g)?;
    barrier(g)?;
    refusals(g)?;
    group.shutdown()?;
    println!("ok shutdown");
    Ok(())
}

/// Small whole numbers, so that every dtype (int8 and bfloat16 too) holds every sum exactly.
fn values(rank: usize, size: i64, kind: Kind) -> Tensor {
    (Tensor::arange(size, (Kind::Int64, Device::Cpu)).remainder(11) + rank as i64 * 3).to_kind(kind)
}

fn expected(size: i64, kind: Kind, ranks: usize, op: ReduceOp) -> Tensor {
    let all: Vec<Tensor> = (0..ranks).map(|rank| values(rank, size, kind)).collect();
    let stacked = Tensor::stack(&all, 0).to_kind(Kind::Double);
    let reduced = match op {
        ReduceOp::Sum => stacked.sum_dim_intlist(0, false, Kind::Double),
        ReduceOp::Min => stacked.amin(0, false),
        ReduceOp::Max => stacked.amax(0, false),
    };
    reduced.to_kind(kind)
}

fn same(what: &str, got: &Tensor, wanted: &Tensor) -> Result<(), Failure> {
    if got.kind() != wanted.kind() || got.size() != wanted.size() || !got.equal(wanted) {
        return Err(format!("{what}: got {got:?} {got}, wanted {wanted:?} {wanted}").into());
    }
    Ok(())
}

fn all_reduce(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
        let tensor = values(g.rank(), size, kind);
        g.all_reduce(&tensor, op)?.wait()?;
        same(
            &format!("all_reduce {op:?} {kind:?} {size}"),
            &tensor,
            &expected(size, kind, g.size(), op),
        )?;
    }
    Ok(())
}

fn broadcast(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    for root in 0..g.size() {
        let tensor = values(g.rank(), size, kind);
        g.broadcast(&tensor, root)?.wait()?;
        same(
            &format!("broadcast from {root} {kind:?} {size}"),
            &tensor,
            &values(root, size, kind),
        )?;
    }
    Ok(())
}

fn all_gather(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    let output = Tensor::zeros([size * g.size() as i64], (kind, Device::Cpu));
    g.all_gather(&output, &values(g.rank(), size, kind))?.wait()?;
    let all: Vec<Tensor> = (0..g.size()).map(|rank| values(rank, size, kind)).collect();
    same(
        &format!("all_gather {kind:?} {size}"),
        &output,
        &Tensor::cat(&all, 0),
    )
}

fn reduce_scatter(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    let whole = size * g.size() as i64;
    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
        let output = Tensor::zeros([size], (kind, Device::Cpu));
        let input = values(g.rank(), whole, kind);
        g.reduce_scatter(&output, &input, op)?.wait()?;
        let wanted = expected(whole, kind, g.size(), op).narrow(0, g.rank() as i64 * size, size);
        same(
            &format!("reduce_scatter {op:?} {kind:?} {size}"),
            &output,
            &wanted,
        )?;
        same(
            "reduce_scatter leaves its input",
            &input,
            &values(g.rank(), whole, kind),
        )?;
    }
    Ok(())
}

/// Tensors of several dimensions, and views into the middle of a buffer, as the trainer's buckets are.
fn shapes(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let flat = values(g.rank(), 120, Kind::Float);
    g.all_reduce(&flat.narrow(0, 24, 48).view([2, 4, 6]), ReduceOp::Sum)?
        .wait()?;
    let sum = expected(120, Kind::Float, g.size(), ReduceOp::Sum);
    let own = values(g.rank(), 120, Kind::Float);
    let wanted = Tensor::cat(
        &[own.narrow(0, 0, 24), sum.narrow(0, 24, 48), own.narrow(0, 72, 48)],
        0,
    );
    same("all_reduce of a view", &flat, &wanted)?;

    let output = Tensor::zeros([g.size() as i64, 5, 24], (Kind::Float, Device::Cpu));
    g.all_gather(&output, &own.view([5, 24]))?.wait()?;
    for rank in 0..g.size() {
        same(
            "all_gather of matrices",
            &output.get(rank as i64).view(-1),
            &values(rank, 120, Kind::Float),
        )?;
    }
    println!("ok shapes");
    Ok(())
}

/// After a reduction every rank holds the same bits, also where the sum is rounded.
fn same_bits(g: &dyn ProcessGroup) -> Result<(), Failure> {
    tch::manual_seed(17 + g.rank() as i64);
    for size in [5i64, 99_991] {
        let tensor = Tensor::randn([size], (Kind::Float, Device::Cpu));
        g.all_reduce(&tensor, ReduceOp::Sum)?.wait()?;
        let all = Tensor::zeros([g.size() as i64, size], (Kind::Float, Device::Cpu));
        g.all_gather(&all, &tensor)?.wait()?;
        for rank in 0..g.size() {
            same("the bits of another rank", &all.get(rank as i64), &tensor)?;
        }
    }
    println!("ok same bits");
    Ok(())
}

/// Many operations of different kinds under way together, waited for in the opposite order.
fn in_flight(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let mut started: Vec<(Box<dyn Work>, Tensor, Tensor)> = Vec::new();
    for index in 0..24i64 {
        let size = 1 + index * 977;
        let tensor = values(g.rank(), size, Kind::Float);
        let (work, wanted) = if index % 3 == 2 {
            let root = index as usize % g.size();
            (g.broadcast(&tensor, root)?, values(root, size, Kind::Float))
        } else {
            let wanted = expected(size, Kind::Float, g.size(), ReduceOp::Sum);
            (g.all_reduce(&tensor, ReduceOp::Sum)?, wanted)
        };
        started.push((work, tensor, wanted));
    }
    while let Some((work, tensor, wanted)) = started.pop() {
        work.wait()?;
        same("an operation in flight", &tensor, &wanted)?;
    }
    let work = g.all_reduce(&values(g.rank(), 10, Kind::Float), ReduceOp::Sum)?;
    let begun = Instant::now();
    while !work.is_completed()? {
        if begun.elapsed() > Duration::from_secs(20) {
            return Err("an operation never says that it has ended".into());
        }
        std::thread::yield_now();
    }
    work.wait()?;
    println!("ok in flight");
    Ok(())
}

/// Nobody leaves a barrier before the last has come.
fn barrier(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let pause = Duration::from_millis(200);
    g.barrier()?.wait()?;
    let begun = Instant::now();
    if g.rank() + 1 == g.size() {
        std::thread::sleep(pause);
    }
    g.barrier()?.wait()?;
    // The other ranks may have entered the second barrier later than this one by the time of a context switch.
    if begun.elapsed() < pause / 2 {
        return Err(format!("the barrier held for {:?} only", begun.elapsed()).into());
    }
    println!("ok barrier");
    Ok(())
}

/// What does not fit is refused before anything is sent, and the group goes on.
fn refusals(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let cpu = |kind| (kind, Device::Cpu);
    let (n, size) = (g.size() as i64, g.size());
    let square = Tensor::zeros([4, 4], cpu(Kind::Float));
    let long = Tensor::zeros([4 * n + 1], cpu(Kind::Float));
    let short = Tensor::zeros([4], cpu(Kind::Float));
    let doubles = Tensor::zeros([4 * n], cpu(Kind::Double));
    let refused = [
        ("a transposed tensor", g.all_reduce(&square.tr(), ReduceOp::Sum)),
        (
            "booleans",
            g.all_reduce(&Tensor::zeros([4], cpu(Kind::Bool)), ReduceOp::Sum),
        ),
        ("a root that is no rank", g.broadcast(&short, size)),
        ("a gather of another length", g.all_gather(&long, &short)),
        ("a gather of another dtype", g.all_gather(&doubles, &short)),
        (
            "a scatter of another length",
            g.reduce_scatter(&short, &long, ReduceOp::Sum),
        ),
    ];
    for (what, result) in refused {
        match result {
            Err(CollectiveError::InvalidTensor { .. }) => {}
            Err(error) => return Err(format!("{what}: {error}").into()),
            Ok(_) => return Err(format!("{what} was taken").into()),
        }
    }
    all_reduce(g, Kind::Float, 10)?;
    println!("ok refusals");
    Ok(())
}

/// The last rank dies without a word while the others wait for it.
fn peer_dies(group: Group) -> Result<(), Failure> {
    all_reduce(group.as_ref(), Kind::Float, 1000)?;
    if group.rank() + 1 == group.size() {
        std::process::abort();
    }
    let begun = Instant::now();
    let tensor = values(group.rank(), 1_000_000, Kind::Float);
    // With three ranks the first survivor to notice leaves too, and the other may see that as its loss.
    let outcome = group.all_reduce(&tensor, ReduceOp::Sum).and_then(Work::wait);
    match outcome {
        Err(CollectiveError::PeerLost {
            op: "all_reduce",
            sequence,
            ..
        }) if sequence > 0 => {
            println!("ok peer lost after {} ms", begun.elapsed().as_millis());
            Ok(())
        }
        other => Err(format!("expected a lost peer, got {other:?}").into()),
    }
}

/// The last rank comes too late.
fn time_out(mut group: Group) -> Result<(), Failure> {
    all_reduce(group.as_ref(), Kind::Float, 1000)?;
    let limit = Duration::from_millis(500);
    if group.rank() + 1 == group.size() {
        std::thread::sleep(Duration::from_secs(4));
        return Ok(());
    }
    group.set_timeout(limit);
    let begun = Instant::now();
    let tensor = values(group.rank(), 1000, Kind::Float);
    let outcome = group.all_reduce(&tensor, ReduceOp::Sum).and_then(Work::wait);
    let waited = begun.elapsed();
    // A survivor whose neighbour timed out first sees that neighbour leave.
    match outcome {
        Err(CollectiveError::TimedOut {
            op: "all_reduce",
            bytes: 4000,
            after,
            ..
        }) if after == limit => {}
        Err(CollectiveError::PeerLost { .. }) if group.size() > 2 => {}
        other => return Err(format!("expected a time-out, got {other:?}").into()),
    }
    if waited < limit.mul_f32(0.8) || waited > Duration::from_secs(3) {
        return Err(format!("a time-out of {limit:?} took {waited:?}").into());
    }
    println!("ok time-out");
    Ok(())
}
