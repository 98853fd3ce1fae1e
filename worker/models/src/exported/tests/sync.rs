//! Batch normalisation of an exported program over participants and in groups.

use super::super::super::layers::tests::sync::{Forward, compare, values};
use super::*;

fn joined(program: &Exported, x: &Tensor) -> Result<Tensor, ModelError> {
    Ok(Tensor::f_cat(&program.run(&[x], true)?, 1)?)
}

#[test]
fn parts_are_normalised_as_the_whole_batch() {
    let folder = tempfile::tempdir().unwrap();
    for (case, size) in [("classifier", 8), ("functional", 6)] {
        let path = folder.path().join(case);
        let mut entries = Entries::of(case).valid_from(1);
        if case == "functional" {
            // Without the buffer `mean`, which follows each part.
            entries = entries.edit_program(|program| {
                program["signature"]["output_specs"].as_array_mut().unwrap().remove(0);
            });
        }
        std::fs::write(&path, entries.bytes()).unwrap();
        let make = |registry: &mut Registry| -> Forward {
            let program = Exported::load(&path, registry).unwrap();
            let needs_two = case == "classifier" && !registry.is_batch_synced();
            assert_eq!(program.min_micro_batch(), if needs_two { 2 } else { 1 });
            Box::new(move |x| joined(&program, x))
        };
        compare(&make, &values([4, 3, size, size]), &[3, 1], 1e-6);
    }
}

#[test]
fn groups_are_normalised_separately() {
    let x = expected("classifier")["input.image"].narrow(0, 0, 4);
    let run = |x: &Tensor, group| {
        let (program, registry) = load("classifier");
        registry.groups().set(group);
        let y = tch::no_grad(|| joined(&program, x)).unwrap();
        (y, registry.get("blocks.0.bn.running_var").unwrap().tensor().copy())
    };
    let (grouped, variance) = run(&x, Some(2));
    let halves = [run(&x.narrow(0, 0, 2), None), run(&x.narrow(0, 2, 2), None)];
    assert!(grouped.allclose(&Tensor::cat(&[&halves[0].0, &halves[1].0], 0), 1e-5, 1e-6, false));
    assert!(variance.allclose(&((&halves[0].1 + &halves[1].1) / 2), 1e-5, 1e-6, false));
}
