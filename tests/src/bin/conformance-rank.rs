//! One rank of the conformance suite: `conformance-rank BACKEND SCENARIO`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    dtrain_tests::conformance::main()
}
