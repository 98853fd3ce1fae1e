use dtrain_data::{BadPlace, BadSample, Column, Field, SampleHashes, Tokens, Vocabulary};

use super::*;

fn batch(fields: Vec<Field>, columns: Vec<Column>) -> Batch {
    Batch {
        fields: fields.into(),
        columns,
        weights: vec![1.0],
        bad: Vec::new(),
        hashes: SampleHashes::default(),
    }
}

fn drawn(batch: &Batch, names: Names, decode: Option<Decode>) -> RgbImage {
    let mut picture = Picture::new(names, decode);
    picture.section("samples".to_owned());
    picture.add(batch, "folder/0.png".to_owned());
    picture.draw()
}

/// The top left pixel of the first sample.
const FIRST: (u32, u32) = (GAP, GAP + LINE + GAP);

/// An image of 128 x 128 pixels, which is drawn pixel by pixel: green below the middle.
fn image() -> (Field, Column) {
    let mut values = vec![0.0; 3 * 128 * 128];
    values[128 * 128 + 128 * 64..2 * 128 * 128].fill(1.0);
    let names = Names::default();
    let mut stored = Vec::new();
    for (channel, plane) in values.chunks_exact(128 * 128).enumerate() {
        stored.extend(plane.iter().map(|value| names.normalize.value(channel, *value)));
    }
    (Field::f32("image", [3, 128, 128]), Column::F32(stored))
}

#[test]
fn an_image_has_the_pixels_that_the_network_gets() {
    let (field, column) = image();
    let picture = drawn(&batch(vec![field], vec![column]), Names::default(), None);
    let at = |x, y| picture.get_pixel(FIRST.0 + x, FIRST.1 + y).0;
    assert_eq!((at(0, 0), at(127, 63), at(0, 64), at(127, 127)), ([0; 3], [0; 3], [0, 255, 0], [0, 255, 0]));
}

#[test]
fn masks_and_maps_stand_beside_their_image() {
    let (field, column) = image();
    let mut mask = vec![1; 128 * 128];
    mask[128 * 64..].fill(255);
    let map = (0..128 * 128).map(|at| if at == 5 { f32::NAN } else { at as f32 }).collect();
    let fields = vec![field, Field::i64("mask", [128, 128]), Field::f32("map", [128, 128])];
    let names = Names { ignore: Some(255), ..Names::default() };
    let picture = drawn(&batch(fields, vec![column, Column::I64(mask), Column::F32(map)]), names, None);
    let at = |panel: u32, x, y| picture.get_pixel(FIRST.0 + panel * 130 + x, FIRST.1 + y).0;
    assert_eq!(at(1, 3, 3), canvas::blend([0; 3], of_class(1), 0.6));
    assert!([at(1, 0, 100), at(1, 4, 100)].contains(&canvas::GREY), "ignored pixels have stripes");
    assert_eq!((at(2, 0, 0), at(2, 127, 127)), ([68, 1, 84], [253, 231, 37]));
    assert_eq!(at(2, 5, 0), [150; 3]);
}

#[test]
fn a_sample_that_cannot_be_read_is_red() {
    let (field, column) = image();
    let mut batch = batch(vec![field], vec![column]);
    let sample = BadSample { index: 0, path: "a.png".to_owned(), reason: "the file is empty".to_owned() };
    batch.bad.push(BadPlace { place: 0, sample });
    let picture = drawn(&batch, Names::default(), None);
    assert_eq!(picture.get_pixel(FIRST.0, FIRST.1).0, RED);
}

#[test]
fn episodes_and_texts_are_drawn() {
    let fields = ["support", "query"].map(|part| {
        [Field::f32(format!("{part}_image"), [6, 3, 8, 8]), Field::i64(format!("{part}_label"), [6])]
    });
    let column = || [Column::F32(vec![0.5; 6 * 3 * 64]), Column::I64((0..6).collect())];
    let columns = [column(), column()].into_iter().flatten().collect();
    let picture = drawn(&batch(fields.into_iter().flatten().collect(), columns), Names::default(), None);
    assert!(picture.height() > 2 * 64, "two rows of images");

    let vocabulary = Vocabulary::Chars("\nabc".to_owned());
    let decode: Decode = Box::new(move |token| vocabulary.decode([token]));
    let fields = ["tokens", "targets"].map(|name| Field::i64(name, [4])).to_vec();
    let columns = vec![Column::I64(vec![1, 2, 0, 9]), Column::I64(vec![2, 0, 9, -100])];
    let picture = drawn(&batch(fields, columns), Names::default(), Some(decode));
    let row = (0..4 * CHARACTER).flat_map(|x| (0..LINE).map(move |y| (FIRST.0 + x, FIRST.1 + y)));
    assert!(row.into_iter().any(|(x, y)| picture.get_pixel(x, y).0 == BLACK));
    assert_eq!(Tokens::U8(vec![1, 2, 1]).hash(0..1).ok(), Tokens::U8(vec![1]).hash(0..1).ok());
}

/// The text of a table: with an image it is below that, and padding is counted.
#[test]
fn texts_of_tables_are_below_their_image() {
    let letters = || -> Decode { Box::new(|token| char::from(token as u8).to_string()) };
    for name in ["tokens", "caption"] {
        let mask = if name == "tokens" { "attention_mask".to_owned() } else { format!("{name}_mask") };
        let fields = vec![Field::f32("image", [3, 8, 8]), Field::i64(name, [4]), Field::i64(mask, [4])];
        let columns = || {
            let image = Column::F32(vec![0.5; 3 * 64]);
            vec![image, Column::I64(vec![104, 105, 33, 0]), Column::I64(vec![1, 1, 1, 0])]
        };
        let mut picture = Picture::new(Names::default(), Some(letters()));
        picture.section("samples".to_owned());
        picture.add(&batch(fields, columns()), "0.png".to_owned());
        let Content::Cells(cells) = &picture.sections[0].1[0].content else { panic!("no image") };
        assert_eq!(cells[0].caption, ["hi!", "3 tokens, then 1 of padding"], "{name}");
    }
}

#[test]
fn numbers_named_targets_are_no_text() {
    let fields = [Field::f32("image", [3, 8, 8]), Field::f32("targets", [2])];
    let columns = [Column::F32(vec![0.5; 3 * 64]), Column::F32(vec![1.0, 2.5])];
    let cells = cells(&fields, &columns, &Names::default(), &mut BTreeSet::new(), sides(&fields));
    assert_eq!(cells[0].caption, ["targets[0] 1.0000", "targets[1] 2.5000"]);
}

#[test]
fn a_sample_of_several_images_has_its_class_once() {
    let fields = [Field::f32("image", [2, 3, 8, 8]), Field::i64("label", [])];
    let columns = [Column::F32(vec![0.5; 2 * 3 * 64]), Column::I64(vec![1])];
    let cells = cells(&fields, &columns, &Names::default(), &mut BTreeSet::new(), sides(&fields));
    let captions: Vec<_> = cells.iter().map(|cell| cell.caption.join("; ")).collect();
    assert_eq!(captions, ["class 1", ""]);
}
