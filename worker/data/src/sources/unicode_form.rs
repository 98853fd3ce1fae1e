//! Names that look alike and differ in Unicode form: `é` as one character (NFC) or as `e` with a mark (NFD), as macOS stores it.

use std::collections::HashMap;
use std::path::Path;

use dtrain_common::content::shell_word;
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// Returns the remedy if names in `folder` are those of `wanted` in another Unicode form.
pub(super) fn remedy<'a>(
    folder: &Path,
    names: impl IntoIterator<Item = &'a String>,
    wanted: impl IntoIterator<Item = &'a String>,
) -> Option<String> {
    let composed = |name: &String| name.nfc().collect::<String>();
    let by_form: HashMap<String, &String> = wanted.into_iter().map(|name| (composed(name), name)).collect();
    let mut alike = names.into_iter().filter_map(|name| Some((name, *by_form.get(&composed(name))?)));
    let (name, other) = alike.find(|(name, other)| name != other)?;
    let form = if is_nfc(other) { "NFC" } else { "NFD" };
    Some(format!(
        "`{name}` and `{other}` are the same name in two Unicode forms; rename the files with `python3 -c 'import os, sys; from \
         unicodedata import normalize; [os.rename(os.path.join(d, n), os.path.join(d, m)) for d, ds, fs in os.walk(sys.argv[1], \
         topdown=False) for n in ds + fs for m in [normalize(\"{form}\", n)] if not os.path.lexists(os.path.join(d, m))]' {}`",
        shell_word(&folder.to_string_lossy())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_two_forms_are_found() {
        let found = |name: &str, other: &str| remedy(Path::new("x"), &[name.to_owned()], &[other.to_owned()]);
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
            ("cafe\u{301}", "caf\u{e8}"),
            // A dog and a cat in Korean.
            ("\u{1100}\u{1161}\u{11bc}\u{110b}\u{1161}\u{110c}\u{1175}", "\u{ace0}\u{c591}\u{c774}"),
            ("a", "a"),
        ] {
            assert_eq!(found(one, other), None, "{one:?} {other:?}");
        }
    }
}
