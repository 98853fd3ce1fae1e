//! Samples of an evaluation with their predictions, as data URIs of bounded size.

use std::io::Read;
use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::runs::files::{json as read_json, open};

/// Samples of a set, characters of a text, and bytes of a picture.
const MOST: usize = 24;
const LONGEST: usize = 2000;
const LARGEST: u64 = 512 << 10;

/// Bytes that the pictures of a page may still take.
pub(super) struct Room(u64);

impl Default for Room {
    fn default() -> Self {
        Self(2 << 20)
    }
}

#[derive(Deserialize)]
struct Sample {
    #[serde(default)]
    picture: Option<String>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    caption: String,
}

/// Reads `samples.json` in a folder: a list of objects of `picture`, a data URI, or `text`, and `caption`; what cannot be shown has
/// a `problem`. `None` without the file.
pub(super) fn samples(folder: &Path, room: &mut Room) -> Result<Option<Vec<Value>>, String> {
    let path = folder.join("samples.json");
    let list: Option<Vec<Sample>> = read_json(&path).map_err(|problem| problem.to_string())?;
    let cut = |text: &str| text.chars().take(LONGEST).collect::<String>();
    let of = |sample: &Sample| {
        let mut shown = json!({"caption": cut(&sample.caption)});
        if let Some(text) = &sample.text {
            shown["text"] = cut(text).into();
        }
        match sample.picture.as_deref().map(|name| data_uri(folder, name, room)) {
            Some(Ok(uri)) => shown["picture"] = uri.into(),
            Some(Err(problem)) => shown["problem"] = problem.into(),
            None => {}
        }
        shown
    };
    Ok(list.map(|list| list.iter().take(MOST).map(of).collect()))
}

/// Returns the picture of a file in the folder.
fn data_uri(folder: &Path, name: &str, room: &mut Room) -> Result<String, String> {
    let is_plain = matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
    if !is_plain {
        return Err("the picture is not a file beside samples.json".to_owned());
    }
    let (file, length) = match open(&folder.join(name)) {
        Ok(Some(opened)) => opened,
        Ok(None) => return Err("the picture is missing".to_owned()),
        Err(problem) => return Err(problem.to_string()),
    };
    if length > LARGEST {
        return Err("the picture has more than 512 KiB".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot read the picture: {error}"))?;
    let kind = kind(&bytes).ok_or("the file is not a PNG, JPEG, GIF or WebP picture")?;
    room.0 =
        room.0.checked_sub(bytes.len() as u64).ok_or("left out: the pictures of a page may take 2 MiB")?;
    Ok(format!("data:image/{kind};base64,{}", base64(&bytes)))
}

/// Returns the kind of a picture by its first bytes. SVG, which may hold scripts and links, is none.
fn kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("png"),
        [0xff, 0xd8, 0xff, ..] => Some("jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("webp"),
        _ => None,
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits =
            three.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for digit in 0..4 {
            let is_there = digit <= three.len();
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if is_there { DIGITS[value as usize].into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let texts = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        texts.iter().for_each(|(plain, coded)| assert_eq!(base64(plain.as_bytes()), *coded));
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn only_pictures_beside_the_list_are_shown_and_only_while_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("samples");
        fs::create_dir(&inner).unwrap();
        let png = [&b"\x89PNG"[..], &[0; 60_000]].concat();
        fs::write(folder.path().join("secret.png"), &png).unwrap();
        fs::write(inner.join("0.png"), &png).unwrap();
        fs::write(inner.join("1.svg"), "<svg onload=alert(1)>").unwrap();
        let list = json!([
            {"picture": "0.png", "caption": "label cat"}, {"picture": "../secret.png"}, {"picture": "1.svg"}, {"picture": "2.png"},
            {"text": "x".repeat(LONGEST + 5), "caption": "a text"}, {"picture": "0.png"},
        ]);
        fs::write(inner.join("samples.json"), list.to_string()).unwrap();
        let found = samples(&inner, &mut Room(100_000)).unwrap().unwrap();
        assert!(found[0]["picture"].as_str().unwrap().starts_with("data:image/png;base64,iVBORw"));
        assert_eq!(found[0]["caption"], "label cat");
        let problem = |number: usize| found[number]["problem"].as_str().unwrap();
        assert_eq!(problem(1), "the picture is not a file beside samples.json");
        assert_eq!(problem(2), "the file is not a PNG, JPEG, GIF or WebP picture");
        assert_eq!(problem(3), "the picture is missing");
        assert_eq!(found[4]["text"].as_str().unwrap().len(), LONGEST);
        assert!(problem(5).starts_with("left out"));
        assert!(samples(folder.path(), &mut Room::default()).unwrap().is_none());
        fs::write(inner.join("samples.json"), "[{").unwrap();
        assert!(samples(&inner, &mut Room::default()).is_err());
    }
}
