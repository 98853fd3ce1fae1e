//! The safe interface against libtorch. Ranks are threads here; the conformance suite runs them as processes.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use dtrain_torch_shim::autocast::Autocast;
use dtrain_torch_shim::gloo::{Gloo, Operation, ReduceOp, Transport};
use dtrain_torch_shim::store::TcpStore;
use dtrain_torch_shim::{ErrorKind, cuda, fused, libtorch_version, rng, tensor};
use tch::{Device, Kind, Tensor};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn serve() -> (TcpStore, u16) {
    // Another test may take the port first.
    let mut tries = (0..100).map(|_| free_port());
    let served = tries.find_map(|port| Some((TcpStore::serve(("127.0.0.1", port), None, LONG).ok()?, port)));
    served.unwrap()
}

#[test]
fn the_version_is_the_pinned_one() {
    assert!(libtorch_version().starts_with("2.11."), "{}", libtorch_version());
}

#[test]
fn a_store_serves_clients_and_times_out() {
    let (server, port) = serve();
    let client = TcpStore::connect("127.0.0.1", port, LONG).unwrap();
    client.set("bytes", &[0, 1, 255]).unwrap();
    client.set("empty", &[]).unwrap();
    assert_eq!(server.get("bytes").unwrap(), [0, 1, 255]);
    assert!(server.get("empty").unwrap().is_empty());
    assert_eq!(client.add("count", 2).unwrap(), 2);
    assert_eq!(server.add("count", 3).unwrap(), 5);
    client.delete("count").unwrap();
    client.delete("count").unwrap();
    assert_eq!(server.add("count", 1).unwrap(), 1);

    let inner = client.prefixed("inner").unwrap();
    inner.set("key", b"inside").unwrap();
    assert_eq!(server.get("inner/key").unwrap(), b"inside");

    // Long enough to connect on a busy machine.
    let timeout = Duration::from_secs(3);
    let started = Instant::now();
    let client = TcpStore::connect("127.0.0.1", port, timeout).unwrap();
    assert_eq!(client.get("missing").unwrap_err().kind, ErrorKind::Timeout);
    assert!(started.elapsed() >= timeout && started.elapsed() < LONG);
}

#[test]
fn a_store_listens_on_the_address_of_its_listener_only() {
    let listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = TcpStore::serve(("127.0.0.2", port), Some(listener), LONG).unwrap();
    let client = TcpStore::connect("127.0.0.2", port, LONG).unwrap();
    client.set("key", b"value").unwrap();
    assert_eq!(server.get("key").unwrap(), b"value");
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap_err();
}

#[test]
fn a_used_port_and_an_absent_server_are_errors() {
    let (_server, port) = serve();
    let used = TcpStore::serve(("127.0.0.1", port), None, SHORT).unwrap_err();
    assert_eq!(used.kind, ErrorKind::Network, "{used}");
    let free = free_port();
    let absent = TcpStore::connect("127.0.0.1", free, SHORT).unwrap_err();
    assert!(matches!(absent.kind, ErrorKind::Timeout | ErrorKind::Network), "{absent}");
}

#[test]
fn a_lost_server_is_a_network_error() {
    let (server, port) = serve();
    let client = TcpStore::connect("127.0.0.1", port, LONG).unwrap();
    drop(server);
    let lost = client.set("key", b"value").and_then(|()| client.get("key")).unwrap_err();
    assert_eq!(lost.kind, ErrorKind::Network, "{lost}");
}

#[test]
fn gloo_reduces_between_two_ranks() {
    let (_server, port) = serve();
    let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn(move || {
                    let store = TcpStore::connect("127.0.0.1", port, LONG).unwrap();
                    let group = Gloo::new(&store, rank, 2, LONG, Transport::Host("127.0.0.1")).unwrap();
                    let tensor = Tensor::from_slice(&[rank as f32, 10.0]);
                    let sum = Operation::AllReduce(ReduceOp::Sum);
                    for (operation, tensors) in
                        [(sum, &[tensor.shallow_clone()][..]), (Operation::Barrier, &[])]
                    {
                        group.start(operation, tensors, &[], LONG).unwrap().wait().unwrap();
                    }
                    group.shutdown();
                    Vec::try_from(tensor).unwrap()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(sums, [[1.0, 20.0], [1.0, 20.0]]);
}

#[test]
fn a_group_without_its_peer_times_out() {
    let server = TcpStore::serve(("127.0.0.1", 0), None, LONG).unwrap();
    let error = Gloo::new(&server, 0, 2, SHORT, Transport::Host("127.0.0.1")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
}

#[test]
fn generator_state_is_restored() {
    tch::manual_seed(7);
    let state = rng::state(Device::Cpu).unwrap();
    let first = Tensor::rand([100], (Kind::Float, Device::Cpu));
    let second = Tensor::rand([100], (Kind::Float, Device::Cpu));
    rng::set_state(Device::Cpu, &state).unwrap();
    let again = Tensor::rand([100], (Kind::Float, Device::Cpu));
    assert_eq!(first, again);
    assert_ne!(first, second);
    assert!(rng::set_state(Device::Cpu, &Tensor::from_slice(&[1u8, 2, 3])).is_err());
    assert_eq!(rng::state(Device::Mps).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn autocast_nests_and_restores() {
    let (a, b) =
        (Tensor::ones([4, 4], (Kind::Float, Device::Cpu)), Tensor::eye(4, (Kind::Float, Device::Cpu)));
    assert_eq!(a.matmul(&b).kind(), Kind::Float);
    {
        let _bf16 = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
        assert_eq!(a.matmul(&b).kind(), Kind::BFloat16);
        {
            let _half = Autocast::enter(Device::Cpu, Kind::Half).unwrap();
            assert_eq!(a.matmul(&b).kind(), Kind::Half);
        }
        assert_eq!(a.matmul(&b).kind(), Kind::BFloat16);
    }
    assert_eq!(a.matmul(&b).kind(), Kind::Float);
    assert_eq!(Autocast::enter(Device::Cpu, Kind::Int).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn parameters_and_gradients_are_views_of_flat_buffers() {
    let options = (Kind::Float, Device::Cpu);
    let weight = Tensor::rand([2, 3], options).set_requires_grad(true);
    let bias = Tensor::rand([2], options).set_requires_grad(true);
    let (data, grad) = (Tensor::zeros([8], options), Tensor::zeros([8], options));
    for (parameter, offset, length) in [(&weight, 0, 6), (&bias, 6, 2)] {
        let shape = parameter.size();
        let view = data.narrow(0, offset, length).view(shape.as_slice());
        tch::no_grad(|| view.shallow_clone().copy_(parameter));
        tensor::set_data(parameter, &view).unwrap();
        tensor::set_grad(parameter, &grad.narrow(0, offset, length).view(shape.as_slice())).unwrap();
    }
    let x = Tensor::ones([5, 3], options);
    for pass in 1..=2 {
        x.linear(&weight, Some(&bias)).sum(Kind::Float).backward();
        // Every weight sees 5 ones, every bias 5 samples; the second pass adds.
        assert_eq!(Vec::<f32>::try_from(&grad).unwrap(), vec![5.0 * pass as f32; 8]);
    }
    // Changing the buffer changes the parameters.
    let _ = tch::no_grad(|| data.shallow_clone().fill_(3.0));
    assert_eq!(weight.double_value(&[1, 2]), 3.0);
    assert_eq!(weight.grad().data_ptr(), grad.data_ptr());
    tensor::clear_grad(&weight).unwrap();
    assert!(!weight.grad().defined());
    let wrong = tensor::set_grad(&bias, &Tensor::zeros([3], options)).unwrap_err();
    assert_eq!(wrong.kind, ErrorKind::InvalidArgument, "{wrong}");
}

#[test]
fn fused_updates_are_the_published_formulas() {
    let tensor = |values: &[f64]| Tensor::from_slice(values);
    let (p0, g) = ([1.0, -2.0, 0.5], [0.1, 0.2, -0.3]);
    let (lr, (b1, b2), wd, eps) = (0.01, (0.9, 0.999), 0.1, 1e-8);
    for decay in [fused::WeightDecay::L2, fused::WeightDecay::Decoupled] {
        let (parameter, mean, square) = (tensor(&p0), tensor(&[0.0; 3]), tensor(&[0.0; 3]));
        let options = fused::Adam { lr, betas: [b1, b2], weight_decay: wd, decay, eps };
        let (mut p, mut m, mut v) = (p0, [0.0; 3], [0.0; 3]);
        for step in 1..=3 {
            fused::adam(&parameter, &tensor(&g), &mean, &square, &Tensor::from(step as f32), None, options)
                .unwrap();
            for i in 0..3 {
                let mut d = g[i];
                match decay {
                    fused::WeightDecay::L2 => d += wd * p[i],
                    fused::WeightDecay::Decoupled => p[i] *= 1.0 - lr * wd,
                }
                m[i] = b1 * m[i] + (1.0 - b1) * d;
                v[i] = b2 * v[i] + (1.0 - b2) * d * d;
                let (first, second) = (m[i] / (1.0 - b1.powi(step)), v[i] / (1.0 - b2.powi(step)));
                p[i] -= lr * first / (second.sqrt() + eps);
                assert!((parameter.double_value(&[i as i64]) - p[i]).abs() < 1e-12, "{decay:?}");
            }
        }
    }

    let grad = tensor(&g);
    let (parameter, buffer) = (tensor(&p0), tensor(&[0.0; 3]));
    let mut options = fused::Sgd { lr, momentum: 0.9, weight_decay: wd, nesterov: true, first_step: true };
    assert_eq!(
        fused::sgd(&parameter, &grad, None, None, options).unwrap_err().kind,
        ErrorKind::InvalidArgument
    );
    let (mut p, mut b) = (p0, [0.0; 3]);
    for pass in 0..2 {
        options.first_step = pass == 0;
        // The kernel may change its gradient to apply the weight decay.
        fused::sgd(&parameter, &tensor(&g), Some(&buffer), None, options).unwrap();
        for i in 0..3 {
            let d = g[i] + wd * p[i];
            b[i] = if pass == 0 { d } else { 0.9 * b[i] + d };
            p[i] -= lr * (d + 0.9 * b[i]);
            assert!((parameter.double_value(&[i as i64]) - p[i]).abs() < 1e-12);
        }
    }
}

#[test]
fn fused_updates_unscale_and_skip_by_device_values() {
    let adam = fused::Adam {
        lr: 0.01,
        betas: [0.9, 0.999],
        weight_decay: 0.1,
        decay: fused::WeightDecay::Decoupled,
        eps: 1e-8,
    };
    let sgd = fused::Sgd { lr: 0.01, momentum: 0.9, weight_decay: 0.1, nesterov: false, first_step: true };
    let (g, scale) = ([3.0f32, -8.0], 4.0f32);
    // Returns parameter and both states after an update from this gradient.
    let update = |by_adam: bool, gradient: [f32; 2], found: Option<(f32, f32)>| {
        let [parameter, first, second] = [1.0f32, 0.5, 0.25].map(|value| Tensor::from_slice(&[value; 2]));
        let (gradient, step) = (Tensor::from_slice(&gradient), Tensor::from(1f32));
        let found = found.map(|(scale, skip)| (Tensor::from(scale), Tensor::from(skip)));
        let found = found.as_ref().map(|(scale, skip)| fused::ScaleAndSkip { scale, skip });
        match by_adam {
            true => fused::adam(&parameter, &gradient, &first, &second, &step, found, adam),
            false => fused::sgd(&parameter, &gradient, Some(&first), found, sgd),
        }
        .unwrap();
        [parameter, first, second].map(|state| Vec::<f32>::try_from(state).unwrap())
    };
    for by_adam in [true, false] {
        let divided = update(by_adam, g.map(|g| g / scale), None);
        assert_eq!(update(by_adam, g, Some((scale, 0.0))), divided);
        let unchanged = [[1.0; 2], [0.5; 2], [0.25; 2]].map(Vec::from);
        assert_eq!(update(by_adam, g, Some((scale, 1.0))), unchanged);
        assert_eq!(update(by_adam, [f32::NAN; 2], Some((f32::NAN, 1.0))), unchanged);
    }
}

#[test]
fn unscaling_multiplies_and_finds_nonfinite_values() {
    let single = |values: &[f32]| Tensor::from_slice(values);
    let (a, b) = (single(&[8.0, -16.0]), single(&[0.5]).to_kind(Kind::Double));
    let (found, inverse) = (Tensor::from(0f32), Tensor::from(0.125f32));
    fused::unscale(&[&a, &b], &found, &inverse).unwrap();
    assert_eq!(Vec::<f32>::try_from(&a).unwrap(), [1.0, -2.0]);
    assert_eq!((b.double_value(&[0]), found.double_value(&[])), (0.0625, 0.0));
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let found = Tensor::from(0f32);
        fused::unscale(&[&a, &single(&[1.0, bad, 1.0])], &found, &inverse).unwrap();
        assert_eq!(found.double_value(&[]), 1.0, "{bad}");
        // A later call without non-finite elements keeps the mark.
        fused::unscale(&[&a], &found, &inverse).unwrap();
        assert_eq!(found.double_value(&[]), 1.0);
    }
    fused::unscale(&[], &found, &inverse).unwrap();
    let error = fused::unscale(&[&a], &found, &Tensor::from(0.5f64)).unwrap_err();
    assert!(error.message.contains("inv_scale"), "{error}");
}

#[test]
fn cuda_is_loaded_or_the_error_names_the_missing_library() {
    match cuda::load() {
        Ok(()) => assert!(cuda::device_count().is_ok()),
        Err(error) => {
            let missing = match error.kind {
                ErrorKind::DriverMissing => "libcuda.so.1",
                ErrorKind::LibraryMissing => "libtorch",
                _ => panic!("{error:?}"),
            };
            assert!(error.message.contains(missing), "{error}");
            assert_eq!(cuda::device_count().unwrap(), 0);
        }
    }
    assert!(cuda::library_folder().unwrap().join("libtorch_cpu.so").is_file());
}
