#![allow(clippy::unwrap_used)]

use dtrain_recipe::{DataKind, Target};
use serde_json::{Value, json};

use super::*;
use crate::raster::Labels;
use crate::tests::images::{paths, png, put};
use crate::{Inspector, MapRule, sources};

static RULE: MaskRule = MaskRule::unnamed(MaskKind::Index, 2, 255);

const READING: Reading<'_> = Reading {
    mask: &RULE,
    map: MapRule { scale: 1.0, ignore: None, ..MapRule::PLAIN },
    split: "split",
    separator: dtrain_recipe::Separator::Auto,
    train: None,
    ignore_classes: &[],
    is_undivided: false,
    unannotated: Unannotated::Background,
};

/// Two images of 8 x 8 pixels: a square of class cat below a smaller one of class ant in the first, a crowd of ants in the second.
fn document() -> Value {
    json!({
        "info": {"year": 2026},
        "images": [
            {"id": 20, "file_name": "b.png", "width": 8, "height": 8, "license": 1},
            {"id": 10, "file_name": "more/a.png", "width": 8, "height": 8},
        ],
        "categories": [{"id": 90, "name": "cat", "supercategory": "animal"}, {"id": 7, "name": "ant"}],
        "annotations": [
            {"id": 1, "image_id": 20, "category_id": 7, "area": 4, "segmentation": [[0, 0, 2, 0, 2, 2, 0, 2]]},
            {"id": 2, "image_id": 20, "category_id": 90, "segmentation": [[0, 0, 4, 0, 4, 4, 0, 4]]},
            {"id": 3, "image_id": 10, "category_id": 7, "iscrowd": 1, "segmentation": {"size": [8, 8], "counts": [8, 8, 48]}},
        ],
    })
}

struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for set in ["train", "test"] {
            put(root.path().join(format!("{set}/more/a.png")), &png(8, 8));
            put(root.path().join(format!("{set}/b.png")), &png(8, 8));
        }
        Self(root)
    }

    fn list(&self, document: &Value, reading: Reading<'_>) -> Result<Samples, String> {
        put(self.0.path().join("train.json"), document.to_string().as_bytes());
        let root = self.0.path();
        let (set, targets, target) = ("train", "train.json", Some(Target::Mask));
        let request = Request { root, set, targets, pair: None, target, fields: &[], list: None, reading };
        sources::list(DataKind::Coco, &request).map(Option::unwrap).map_err(|error| error.to_string())
    }

    fn fails(&self, change: impl Fn(&mut Value), part: &str) {
        let mut document = document();
        change(&mut document);
        let error = self.list(&document, READING).unwrap_err();
        assert!(error.contains("train.json: ") && error.contains(part), "{error}");
    }
}

fn names(samples: &Samples) -> Vec<String> {
    samples.mask_rules().next().unwrap().1.names.clone()
}

fn drawn(samples: &Samples, sample: usize) -> Vec<u16> {
    let ListValues::Drawn(drawings, _) = &samples.lists[1].values else { panic!("no drawings") };
    let mut labels = Labels::default();
    drawings.draw(sample, &mut labels);
    labels.values
}

#[test]
fn categories_are_classes_by_id_and_small_shapes_are_on_top() {
    let scene = Scene::new();
    let samples = scene.list(&document(), READING).unwrap();
    assert_eq!(names(&samples), ["background", "ant", "cat"]);
    assert_eq!(paths(&samples), ["b.png", "more/a.png"]);
    let mask = drawn(&samples, 0);
    assert_eq!((mask[0], mask[9], mask[18], mask[27], mask[36]), (1, 1, 2, 2, 0));
    let crowd = drawn(&samples, 1);
    assert_eq!(crowd.iter().map(|&value| usize::from(value)).sum::<usize>(), 8);
    assert!((0..8).all(|row| crowd[8 * row + 1] == 1), "a column");
    let sent = serde_json::to_vec(&samples).unwrap();
    assert_eq!(serde_json::from_slice::<Samples>(&sent).unwrap(), samples);
}

#[test]
fn classes_of_another_set_are_those_of_training_by_name() {
    let scene = Scene::new();
    let train = scene.list(&document(), READING).unwrap();
    let mut other = document();
    other["categories"] =
        json!([{"id": 1, "name": "ant"}, {"id": 2, "name": "cat"}, {"id": 3, "name": "unused"}]);
    for (at, id) in [(0, 1), (1, 2), (2, 1)] {
        other["annotations"][at]["category_id"] = json!(id);
    }
    let test = scene.list(&other, Reading { train: Some(&train), ..READING }).unwrap();
    assert_eq!((names(&test), drawn(&test, 0)), (names(&train), drawn(&train, 0)));
    other["annotations"][2]["category_id"] = json!(3);
    let error = scene.list(&other, Reading { train: Some(&train), ..READING }).unwrap_err();
    assert!(error.contains("1 category that the training annotations lack: `unused`"), "{error}");
}

#[test]
fn ignored_classes_have_no_number() {
    let scene = Scene::new();
    let ant = ["ant".to_owned()];
    let samples = scene.list(&document(), Reading { ignore_classes: &ant, ..READING }).unwrap();
    assert_eq!(names(&samples), ["background", "cat"]);
    assert_eq!((drawn(&samples, 0)[0], drawn(&samples, 0)[18]), (255, 1));
    let unknown = ["amt".to_owned()];
    let error = scene.list(&document(), Reading { ignore_classes: &unknown, ..READING }).unwrap_err();
    assert!(
        error.contains("no category has the name \"amt\" of data.ignore_classes; the names are `ant`, `cat`"),
        "{error}"
    );
}

#[test]
fn images_without_annotations_are_background_left_out_or_an_error() {
    let scene = Scene::new();
    let mut bare = document();
    bare["annotations"].as_array_mut().unwrap().pop();
    let samples = scene.list(&bare, READING).unwrap();
    assert_eq!((samples.count(), drawn(&samples, 1)), (2, vec![0; 64]));
    assert_eq!(samples.ignored.notes(), ["1 image without annotations taken for background: `more/a.png`"]);
    let less = scene.list(&bare, Reading { unannotated: Unannotated::LeaveOut, ..READING }).unwrap();
    assert_eq!(paths(&less), ["b.png"]);
    let error = scene.list(&bare, Reading { unannotated: Unannotated::Error, ..READING }).unwrap_err();
    assert!(
        error.contains("1 image has no annotations: `more/a.png`; annotate them, or set data.unannotated"),
        "{error}"
    );
}

#[test]
fn a_size_that_differs_from_the_image_is_a_bad_sample() {
    let scene = Scene::new();
    let mut other = document();
    other["images"][0]["width"] = json!(9);
    let samples = scene.list(&other, READING).unwrap();
    let needs = crate::Needs {
        channels: 3,
        resize: dtrain_recipe::Resize::Crop,
        orientation: dtrain_recipe::Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let check = |sample| samples.inspect(sample, needs, crate::Depth::Full, &mut Inspector::for_check());
    let error = check(0).unwrap_err().to_string();
    assert!(error.contains("train.json has 9x8 pixels, but the image 8x8"), "{error}");
    assert_eq!(check(1).unwrap(), Some((8, 8)));
}

#[test]
fn wrong_annotations_are_named_and_counted() {
    let scene = Scene::new();
    scene.fails(
        |all| all["annotations"][0]["image_id"] = json!(5),
        "1 annotation is of an image that `images` lacks (id 5): `id 1`",
    );
    scene.fails(
        |all| all["annotations"][1]["category_id"] = json!(5),
        "of a category that `categories` lacks (id 5): `id 2`",
    );
    scene.fails(
        |all| all["images"][0]["id"] = json!(10),
        "two images have the id 10: `b.png` and `more/a.png`",
    );
    scene.fails(
        |all| all["images"][0]["file_name"] = json!("more/a.png"),
        "the ids 20 and 10 are both the file `more/a.png`",
    );
    scene
        .fails(|all| all["images"][0]["file_name"] = json!("./more/a.png"), "are both the file `more/a.png`");
    scene.fails(|all| all["images"][0]["file_name"] = json!("../b.png"), "\"../b.png\" is not a path below");
    scene.fails(|all| all["images"][0]["file_name"] = json!("c.png"), "1 image is no file of ");
    scene.fails(
        |all| all["images"][0]["width"] = json!(4_000_000_000u32),
        "more or fewer than a mask may have",
    );
    scene.fails(|all| all["images"][0]["height"] = json!(0), "more or fewer than a mask may have");
    scene.fails(|all| all["categories"][0]["id"] = json!(7), "two categories have the id 7");
    scene.fails(|all| all["categories"][0]["name"] = json!("ant"), "two categories have the name \"ant\"");
    scene.fails(|all| all["annotations"] = json!([]), "`annotations` is empty");
    scene
        .fails(|all| drop(all.as_object_mut().unwrap().remove("annotations")), "missing field `annotations`");
    scene.fails(
        |all| all["annotations"][0]["image_id"] = json!("20"),
        "not in COCO's format: invalid type: string",
    );
    scene.fails(
        |all| {
            all["annotations"][0]["segmentation"] = json!([]);
            all["annotations"][1]["segmentation"] = json!([]);
        },
        "2 annotations have no segmentation, only a box: `id 1`, `id 2`; correct or remove them",
    );
    scene.fails(
        |all| all["annotations"][0]["segmentation"] = json!([[0, 0, 1, 1]]),
        "1 annotation has a polygon without three points",
    );
    scene.fails(
        |all| {
            let names: Vec<Value> = (0..300).map(|id| json!({"id": id, "name": format!("c{id}")})).collect();
            all["categories"] = json!(names);
        },
        "data.ignore = 255 is the number of a class, of 301",
    );
}

#[test]
fn images_that_the_annotations_lack_are_left_out() {
    let scene = Scene::new();
    put(scene.0.path().join("train/c.png"), &png(8, 8));
    let samples = scene.list(&document(), READING).unwrap();
    assert_eq!(samples.count(), 2);
    assert_eq!(
        samples.ignored.notes(),
        ["1 image of train left out, because the annotations do not name them: `c.png`"]
    );
}
