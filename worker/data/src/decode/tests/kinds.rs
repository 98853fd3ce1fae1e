use std::collections::BTreeMap;

use super::*;

#[test]
fn the_kind_of_a_file_is_that_of_pillow() {
    let folder = reference("pictures");
    let all: BTreeMap<String, [String; 2]> =
        serde_json::from_slice(&std::fs::read(folder.join("kinds.json")).unwrap()).unwrap();
    for (name, [format, mode]) in &all {
        let expected = match (name.as_str(), mode.as_str()) {
            // Pillow tells by its colours that the palette is one of greys.
            ("kind-l.bmp", _) | (_, "P") => "palette",
            // A TIFF of grey does not say what its second band is to the decoder.
            ("kind-la.tif", _) => "of 2 bands",
            (_, "1") => "grey of 1 bit",
            (_, "L") => "grey",
            (_, "LA") => "grey with alpha",
            (_, "RGBA") => "RGB with alpha",
            (_, "I;16") => "grey of 16 bits",
            (_, "F") => "grey of 32-bit floating-point numbers",
            (_, other) => other,
        };
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let found = kind(&bytes, "image").unwrap().to_string().to_lowercase();
        assert_eq!(found, format!("{format} {expected}").to_lowercase(), "{name}");
    }
    assert_eq!(all.len(), 25);
    let bands = tiff(5, 8, 1, 2, &[5; 10]).bytes();
    assert_eq!(kind(&bands, "image").unwrap().to_string(), "TIFF of 5 bands");
    assert_eq!(kind(b"text", "image"), None);
}
