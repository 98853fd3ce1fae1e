//! One rank of the conformance suite: `conformance-rank BACKEND SCENARIO`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    dtrain_tests::conformance::main()?;
    dtrain_torch_shim::end_process(0)
}
