//! Trainings on the samples of a table.

use dtrain_test_kit::thorough;
use dtrain_tests::runs::Sandbox;

use crate::bad_input::{folder_recipe, image_folder};
use crate::checkpoints::assert_same;

/// Writes `data/table.csv` with the samples of [`image_folder`]'s folders, the test samples first.
fn table(sandbox: &Sandbox, train: usize, test: usize) {
    let mut lines = "split,photo,kind\n".to_owned();
    for (split, count) in [("test", test), ("train", train)] {
        for class in ["dark", "light"] {
            for index in 0..count {
                lines += &format!("{split},{split}/{class}/{index:03}.png,{class}\n");
            }
        }
    }
    std::fs::write(sandbox.path("data/table.csv"), lines).unwrap();
}

#[test]
fn a_table_trains_as_the_folders_of_its_files() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 24, 5);
    table(&sandbox, 24, 5);
    let of_table = [
        "data.kind=table",
        "data.root=data/table.csv",
        "data.fields.image=image:photo",
        "data.fields.label=class:kind",
        "data.changes=[{ name = \"resized-crop\" }, { name = \"flip\" }]",
    ];
    for &ranks in thorough::cases(&[2, 1, 3], 1) {
        let folders = sandbox.train(ranks, &format!("folders-{ranks}"), &["data.augment=resized-crop-flip"]);
        let table = sandbox.train(ranks, &format!("table-{ranks}"), &of_table);
        assert_eq!(folders.per_step("loss"), table.per_step("loss"));
        let [folders, table] = [folders, table].map(|run| run.0.checkpoint(3));
        assert_same(&folders, &table, &["model.safetensors"]);
    }
}
