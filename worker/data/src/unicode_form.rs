//! Names that look alike and differ in Unicode form: `é` as one character (NFC) or as `e` with a mark (NFD), as macOS stores it.

use std::collections::HashMap;
use std::path::Path;

use dtrain_common::content::shell_word;

/// Returns the remedy if names in `folder` are those of `wanted` in another Unicode form.
pub(super) fn remedy<'a>(
    folder: &Path,
    names: impl Iterator<Item = &'a str>,
    wanted: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let by_shape: HashMap<String, &str> = wanted.map(|name| (shape(name), name)).collect();
    let mut alike = names.filter_map(|name| {
        let other = by_shape.get(&shape(name))?;
        is_other_form(name, other).then_some((name, *other))
    });
    let (name, other) = alike.next()?;
    let form = if other.chars().any(is_mark) { "NFD" } else { "NFC" };
    Some(format!(
        "`{name}` and `{other}` are the same name in two Unicode forms; rename the files with `python3 -c 'import os, sys; from \
         unicodedata import normalize; [os.rename(os.path.join(d, n), os.path.join(d, m)) for d, ds, fs in os.walk(sys.argv[1], \
         topdown=False) for n in ds + fs for m in [normalize(\"{form}\", n)] if not os.path.lexists(os.path.join(d, m))]' {}`",
        shell_word(&folder.to_string_lossy())
    ))
}

/// Returns whether the character changes the one before it: accents, Japanese voicing, parts of Korean syllables.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{3099}' | '\u{309a}' | '\u{1160}'..='\u{11ff}')
}

/// Returns a name in which every character beyond ASCII, and every one with marks, is the same.
fn shape(name: &str) -> String {
    let shape = |cluster: Vec<char>| match cluster.as_slice() {
        [c] if c.is_ascii() => *c,
        _ => '\u{fffd}',
    };
    clusters(name).into_iter().map(shape).collect()
}

/// Returns whether two names of one shape differ only in characters that are composed in one of them.
fn is_other_form(one: &str, other: &str) -> bool {
    one != other && clusters(one).iter().zip(clusters(other)).all(|(a, b)| {
        *a == b
            || matches!((a.as_slice(), b.as_slice()), ([c], [_, _, ..]) | ([_, _, ..], [c]) if !c.is_ascii())
    })
}

/// Splits a name into characters with their marks.
fn clusters(name: &str) -> Vec<Vec<char>> {
    let mut found: Vec<Vec<char>> = Vec::new();
    for c in name.chars() {
        match found.last_mut() {
            Some(last) if is_mark(c) => last.push(c),
            _ => found.push(vec![c]),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_two_forms_are_found() {
        let found = |name: &str, other: &str| remedy(Path::new("x"), [name].into_iter(), [other].into_iter());
        for (one, other, form) in [
            ("caf\u{e9}", "cafe\u{301}", "NFD"),
            ("cafe\u{301}", "caf\u{e9}", "NFC"),
            ("\u{1112}\u{1161}\u{11ab}", "\u{d55c}", "NFC"),
            ("\u{304c}/a.png", "\u{304b}\u{3099}/a.png", "NFD"),
        ] {
            assert!(found(one, other).is_some_and(|text| text.contains(form)), "{one:?} {other:?}");
        }
        for (one, other) in [
            ("cat", "dog"),
            ("caf\u{e9}", "caf\u{e8}"),
            ("\u{732b}", "\u{72ac}"),
            ("cafe", "cafe\u{301}"),
            ("a", "a"),
        ] {
            assert_eq!(found(one, other), None, "{one:?} {other:?}");
        }
    }
}
