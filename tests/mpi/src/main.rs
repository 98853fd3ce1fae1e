//! One rank of the conformance suite, with the collectives of an MPI library: `conformance-rank-mpi mpi suite`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    dtrain_mpi::offer();
    dtrain_tests::conformance::main()
}
