#![allow(clippy::unwrap_used)]

use super::*;
use crate::sources::shards::tests::archive;
use crate::tests::images::put;

#[test]
fn an_archive_that_is_cut_or_no_archive_is_named_with_the_remedy() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("s.tar");
    let whole = archive(&[("a.jpg", &[1; 700]), ("b.jpg", &[2; 600])]);
    let said = |bytes: &[u8]| {
        put(&path, bytes);
        let error = TarIndex::of(&path).unwrap_err().to_string();
        error.replace(root.path().to_str().unwrap(), "ROOT")
    };
    let again = "copy or download it again";
    assert_eq!(
        said(&[]),
        format!("ROOT/s.tar: the file is empty; {again}, or leave it out of the files of the set")
    );
    // The second header begins at 1536, its content at 2048, and the mark of the end at 3072.
    let cut = said(&whole[..2100]);
    assert_eq!(
        cut,
        format!("ROOT/s.tar: the file is cut in `b.jpg`, which needs 600 bytes, and 52 are there; {again}")
    );
    for length in [1536, 1600, 3072, 3100] {
        let last = if length < 3072 { "a.jpg" } else { "b.jpg" };
        let said = said(&whole[..length]);
        assert!(
            said.starts_with(&format!("ROOT/s.tar: the file ends after `{last}` without the mark")),
            "{length}: {said}"
        );
    }
    let two = said(&[&whole[..], &archive(&[("c.jpg", &[3; 10])])].concat());
    assert!(two.contains("follows the mark of the archive's end, which is after `b.jpg`"), "{two}");
    assert!(two.ends_with("missing; join archives with `tar --concatenate --file FIRST SECOND`"), "{two}");
    assert!(said(&whole[..300]).contains("the file ends after `(the beginning)`"));
    let gzip = said(b"\x1f\x8b\x08\x00, and more than a block of bytes".repeat(40).as_slice());
    assert!(gzip.contains("it is compressed by gzip; members of a compressed archive cannot be read one by one: unpack it with `gzip -d`"), "{gzip}");
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n";
    assert!(said(pointer).contains("lfs pull"), "{}", said(pointer));
    let text = said("no archive at all. ".repeat(100).as_bytes());
    assert!(text.contains("the member after `(the beginning)` is damaged"), "{text}");
    assert!(
        TarIndex::of(&root.path().join("t.tar"))
            .unwrap_err()
            .to_string()
            .contains("t.tar: it cannot be read: No such file")
    );
}

#[test]
fn an_index_knows_where_members_are_and_short_texts() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("s.tar");
    let long = format!("{}/{}.jpg", "f".repeat(120), "n".repeat(120));
    let whole = archive(&[("a.cls", b"7"), (&long, &[2; 600])]);
    put(&path, &whole);
    let index = TarIndex::of(&path).unwrap();
    assert_eq!(index.members[0].text.as_deref(), Some("7"));
    assert_eq!((index.members[1].name.as_str(), &index.members[1].text), (long.as_str(), &None));
    for (member, first) in index.members.iter().zip([b'7', 2]) {
        assert_eq!(whole[member.start as usize], first);
    }
    assert_eq!(TarIndex::of(&path).unwrap(), index);
}
