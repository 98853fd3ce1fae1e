//! dtrain-worker: one rank of a training.

fn main() -> ! {
    dtrain_worker::main_by_recipe()
}
