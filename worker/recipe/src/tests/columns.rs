//! `data.kind = "table"` and `data.fields`.

use super::samples::TABLE;
use super::*;
use crate::{ColumnKind, DataKind, FieldColumns};

fn column(field: &str, kind: ColumnKind, columns: &[&str]) -> FieldColumns {
    let columns = columns.iter().map(|name| name.to_string()).collect();
    FieldColumns { field: field.to_owned(), kind, columns }
}

#[test]
fn a_table_has_the_fields_of_the_task_unless_others_are_stated() {
    let recipe = parse(TABLE, &[]).unwrap();
    let (image, label) =
        (column("image", ColumnKind::Image, &["image"]), column("label", ColumnKind::Class, &["label"]));
    assert_eq!(recipe.fields().unwrap(), [image, label.clone()]);
    assert_eq!(recipe.data.fields.len(), 2, "a saved recipe has them");
    round_trip(&recipe);
    // Images come first, then the target, then the others by name.
    let stated = [
        "data.fields.a=numbers: x , y",
        "data.fields.label=class",
        "data.fields.image=image:p",
        "data.fields.b=image:q,r",
        "model.file=/m.pt2",
    ];
    let found = parse(TABLE, &stated).unwrap().fields().unwrap();
    let expected = [
        column("image", ColumnKind::Image, &["p"]),
        column("b", ColumnKind::Image, &["q", "r"]),
        label,
        column("a", ColumnKind::Numbers, &["x", "y"]),
    ];
    assert_eq!(found, expected);
    assert_eq!(small(&[]).data.kind, DataKind::Generated);
    assert_eq!(small(&[]).fields().unwrap(), []);
}

#[test]
fn a_program_takes_any_fields_and_its_target_if_stated() {
    let program = TABLE.replace("classify", "program") + "[model]\nfile = \"/m.pt2\"\n";
    let recipe = parse(&program, &[]).unwrap();
    assert_eq!((recipe.target(), recipe.data.target), (None, None));
    assert_eq!(recipe.fields().unwrap(), [column("image", ColumnKind::Image, &["image"])]);
    round_trip(&recipe);
    let numbers = parse(&program, &["data.fields.x=numbers:a,b"]).unwrap();
    assert_eq!(numbers.fields().unwrap(), [column("x", ColumnKind::Numbers, &["a", "b"])]);
    let stated = ["data.fields.x=numbers", "data.target=class"];
    expect_error(&program, &stated, "data.fields", "needs the field `label`");
}

#[test]
fn the_settings_of_masks_and_maps_are_those_of_any_field() {
    let program = TABLE.replace("classify", "program") + "[model]\nfile = \"/m.pt2\"\n";
    let both = ["data.fields.a=mask", "data.fields.b=map", "data.classes=3", "data.target_scale=2.0"];
    let recipe = parse(&program, &both).unwrap();
    assert_eq!((recipe.data.ignore, recipe.ignores_maps()), (Some(255), false));
    round_trip(&recipe);
    let of_target =
        parse(&program, &[&both[..], &["data.fields.map=map", "data.target=map"]].concat()).unwrap();
    assert_eq!((of_target.data.ignore, of_target.ignores_maps()), (None, true));
    // Without files, nothing is decoded; with pairs, the partner's fields have other names.
    let numbers = "data.fields.x=numbers:a,b";
    for set in
        ["data.image_size=8", "data.changes=[{name=\"flip\"}]", "data.cache=off", "data.crop_fraction=0.9"]
    {
        let key = set.split_once('=').unwrap().0;
        expect_error(&program, &[numbers, set], key, "no field in data.fields is an image, mask or map");
    }
    let own = ["data.pairs=true", "data.fields.image=image", "data.fields.pair_image=image:other"];
    expect_error(&program, &own, "data.fields.pair_image", "rename the field");
    let classes = ["data.fields.image=image", "data.fields.label=class", "data.sampler=balanced"];
    expect_error(&program, &classes, "data.sampler", "set data.target = \"class\"");
    let scaled = ["data.resize=none", "data.interpolation=bicubic"];
    expect_error(&program, &scaled, "data.interpolation", "images keep their own size");
    let maps = parse(&program, &["data.fields.b=map", "data.ignore=7"]).unwrap();
    assert!(maps.ignores_maps());
    expect_set_error(&program, "data.ignore=7", "it applies to masks and maps");
    expect_error(
        &program,
        &["data.fields.a=mask"],
        "data.classes",
        "state the number of classes in the masks",
    );
}

#[test]
fn wrong_fields_are_errors_with_a_remedy() {
    for (set, part) in [
        ("data.fields.label=klass", "\"klass\" is no kind of field; the kinds are "),
        ("data.fields.label=class:a,b", "a field of the kind \"class\" has one column, not 2"),
        ("data.fields.image=image:a,,b", "a name of a column is empty"),
        ("data.fields.image=image:a,a", "the column \"a\" is there twice"),
        ("data.fields.image=image:a,b", "the network takes one image for each sample; name one column"),
        ("data.fields.age=numbers", "the network has no input for this field; remove it"),
        ("data.fields.label=numbers", "the task takes the kind \"class\" for this field, not \"numbers\""),
    ] {
        let key = set.split_once('=').unwrap().0;
        let others = ["data.fields.image=image", "data.fields.label=class"];
        let mut sets: Vec<&str> = others.into_iter().filter(|other| !other.starts_with(key)).collect();
        sets.push(set);
        expect_error(TABLE, &sets, key, part);
    }
    expect_error(
        TABLE,
        &["data.fields.image=image"],
        "data.fields",
        "needs the field `label`; add label = \"class:COLUMN\"",
    );
    expect_error(
        SMALL,
        &["data.fields.image=image"],
        "data.fields",
        "it applies to data.kind = \"table\" or \"shards\" or \"parquet\"",
    );
    let masks = TABLE.replace("classify", "segment") + "[model]\nname = \"unet\"\n";
    expect_error(
        &masks,
        &["data.train_masks=m", "data.classes=2"],
        "data.train_masks",
        "the columns in data.fields name the files",
    );
    expect_set_error(TABLE, "data.classes=3", "the table determines it");
}

#[test]
fn classes_of_an_image_are_a_target_of_folders_and_tables() {
    let recipe = parse(samples::CLASSES, &[]).unwrap();
    assert_eq!((recipe.target(), recipe.data.target), (Some(Target::Classes), Some(Target::Classes)));
    let table = TABLE.replace("[data]", "[data]\ntarget = \"classes\"");
    let recipe = parse(&table, &[]).unwrap();
    assert_eq!(recipe.fields().unwrap()[1], column("label", ColumnKind::Classes, &["label"]));
    // The usual target of a task with a network is not in a saved recipe.
    assert_eq!(parse(TABLE, &["data.target=class"]).unwrap(), parse(TABLE, &[]).unwrap());
    assert_eq!(parse(TABLE, &[]).unwrap().data.target, None);
    let generated = ["data.target=classes"];
    expect_error(
        SMALL,
        &generated,
        "data.kind",
        "with data.target = \"classes\" takes the kinds \"folder\", \"table\", \"shards\", \"parquet\", not",
    );
    expect_error(
        &table,
        &["data.sampler=balanced"],
        "data.sampler",
        "it applies to classes, and the task is",
    );
    expect_error(
        &table,
        &["data.fields.label=class", "data.fields.image=image"],
        "data.fields.label",
        "takes the kind \"classes\"",
    );
    let regress = parse(samples::REGRESS, &["data.target=classes"]);
    assert!(regress.unwrap_err().to_string().contains("data.train_masks"), "its masks have no effect");
}

#[test]
fn a_text_field_needs_a_tokenizer() {
    let recipe = parse(samples::CAPTIONS, &[]).unwrap();
    assert_eq!(recipe.fields().unwrap()[1], column("caption", ColumnKind::Text, &["meta.caption"]));
    let without = |line: &str| samples::CAPTIONS.replace(line, "");
    // Else the program's input states it.
    assert_eq!(parse(&without("context = 64"), &[]).unwrap().model.context, None);
    expect_error(
        &without("tokenizer = \"bytes\""),
        &[],
        "data.tokenizer",
        "name the tokenizer.json of the texts, or set it to \"bytes\"",
    );
    expect_error(TABLE, &["data.tokenizer=bytes"], "data.tokenizer", "it applies to texts");
}

#[test]
fn lists_and_separators_apply_to_their_kinds_of_data() {
    let folder = "task = \"classify\"\n[data]\nroot = \"/x\"\ntest = \"val\"\n[train]\nepochs = 1\n";
    let lists = |set: &str| format!("data.lists={{ {set} = \"val.txt\" }}");
    assert_eq!(parse(folder, &[&lists("val")]).unwrap().data.lists["val"], "val.txt");
    let more = ["data.val=check", "data.tests={ night = \"dark\" }"];
    for set in ["check", "dark"] {
        assert!(parse(folder, &[&more[..], &[&lists(set)]].concat()).is_ok(), "{set}");
    }
    expect_error(
        folder,
        &[&lists("test")],
        "data.lists.test",
        "no set has this name; the sets are \"train\", \"val\"",
    );
    expect_error(folder, &["data.lists={ val = \"../val.txt\" }"], "data.lists", "below data.root");
    expect_error(
        TABLE,
        &["data.lists={ test = \"val.txt\" }"],
        "data.lists",
        "it applies to folders of images with classes",
    );
    expect_error(folder, &["data.separator=tab"], "data.separator", "it applies to CSV files");
    for kind in ["cub", "json-list"] {
        let kind = format!("data.kind={kind}");
        assert_eq!(parse(folder, &[&kind]).unwrap().target(), Some(Target::Class));
        expect_error(
            folder,
            &[&kind, "data.target=classes"],
            "data.kind",
            "takes the kinds \"folder\", \"table\"",
        );
    }
}
