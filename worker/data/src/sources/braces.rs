//! Patterns of names with braces, as WebDataset takes them: `train-{000..009}.tar`, `{a,b}/part-{0..3}.tar`.

/// The most names of a pattern.
const MOST: usize = 1 << 20;

const UNOPENED: &str = "a brace is not opened; add `{`";

/// Returns the names of a pattern in order; an error says what is wrong with it.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        if before.contains('}') {
            return Err(UNOPENED.to_owned());
        }
        let (inner, behind) = after.split_once('}').ok_or("a brace is not closed; add `}`")?;
        if inner.contains('{') {
            return Err("a brace is inside of another; write the names without".to_owned());
        }
        let words = words(inner)?;
        if names.len().saturating_mul(words.len()) > MOST {
            return Err(format!("it has more than {MOST} names; name a folder"));
        }
        names = names
            .iter()
            .flat_map(|name| words.iter().map(move |word| format!("{name}{before}{word}")))
            .collect();
        rest = behind;
    }
    if rest.contains('}') {
        return Err(UNOPENED.to_owned());
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// Returns the words of one pair of braces, or the numbers from one to another.
fn words(inner: &str) -> Result<Vec<String>, String> {
    let Some((first, last)) = inner.split_once("..") else {
        let words: Vec<_> = inner.split(',').map(str::to_owned).collect();
        return match words.len() {
            1 => {
                Err(format!("`{{{inner}}}` is one word; write numbers as {{000..009}}, or words as {{a,b}}"))
            }
            _ => Ok(words),
        };
    };
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u64>().map_err(|_| format!("{text:?} is not a number")),
        false => Err(format!("{text:?} is not a number; write numbers as {{000..009}}")),
    };
    let (from, to) = (number(first)?, number(last)?);
    if from > to {
        return Err(format!("`{{{inner}}}` goes down; write {{{last}..{first}}}"));
    }
    if to - from >= MOST as u64 {
        return Err(format!("it has more than {MOST} names; name a folder"));
    }
    // As in a shell: zeros in front fill all numbers.
    let padded = [first, last].iter().any(|text| text.len() > 1 && text.starts_with('0'));
    let width = if padded { first.len().max(last.len()) } else { 0 };
    Ok((from..=to).map(|number| format!("{number:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn braces_are_numbers_or_words_as_in_a_shell() {
        assert_eq!(expand("train.tar").unwrap(), ["train.tar"]);
        assert_eq!(expand("t-{008..010}.tar").unwrap(), ["t-008.tar", "t-009.tar", "t-010.tar"]);
        assert_eq!(expand("{9..11}").unwrap(), ["9", "10", "11"]);
        assert_eq!(expand("{a,b}/{0..1}.tar").unwrap(), ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]);
        for (pattern, expected) in [
            ("a{0..1", "not closed"),
            ("a0..1}", "not opened"),
            ("{2..1}", "write {1..2}"),
            ("{a..b}", "\"a\" is not a number"),
            ("{0}", "one word"),
            ("{0..99999999999999999999}", "is not a number"),
            ("{0..9999999}", "more than"),
            ("{{a,b}}", "inside of another"),
        ] {
            let error = expand(pattern).unwrap_err();
            assert!(error.contains(expected), "{pattern}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_names_or_an_error(text in "[a-b0-2{},.]{0,16}") {
            if let Ok(names) = expand(&text) {
                let is_plain = |name: &String| !name.contains(['{', '}']);
                prop_assert!(!names.is_empty() && names.iter().all(is_plain), "{:?}", names);
            }
        }
    }
}
