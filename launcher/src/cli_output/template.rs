//! `--log-line-prefix-template`: what stands before each line that is shown.

use std::fmt;
use std::str::FromStr;

/// A prefix with names to be filled in: `${rank}` or `$rank`; `$$` is a dollar sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixTemplate(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(Name),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Role,
    LocalRank,
    Rank,
    Hostname,
}

const NAMES: [(&str, Name); 4] = [
    ("role_name", Name::Role),
    ("local_rank", Name::LocalRank),
    ("rank", Name::Rank),
    ("hostname", Name::Hostname),
];

/// Where a worker is: what the names stand for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) role_name: &'a str,
    pub(crate) local_rank: usize,
    pub(crate) rank: usize,
    pub(crate) hostname: &'a str,
}

impl PrefixTemplate {
    /// The prefix of the worker at `place`.
    pub(crate) fn fill(&self, place: &Place<'_>) -> String {
        self.0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.clone(),
                Part::Name(Name::Role) => place.role_name.to_owned(),
                Part::Name(Name::LocalRank) => place.local_rank.to_string(),
                Part::Name(Name::Rank) => place.rank.to_string(),
                Part::Name(Name::Hostname) => place.hostname.to_owned(),
            })
            .collect()
    }
}

impl FromStr for PrefixTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(['\n', '\r']) {
            return Err("the prefix stands before a line and cannot contain the end of one".into());
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            literal.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                literal.push('$');
                rest = after;
                continue;
            }
            let (name, after) = name_at_start(after)?;
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(Part::Name(name));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self(parts))
    }
}

/// The name that begins `text`, which stood after a dollar sign, and what follows it.
fn name_at_start(text: &str) -> Result<(Name, &str), String> {
    let (word, after) = match text.strip_prefix('{') {
        Some(inner) => inner.split_once('}').ok_or("a `${` has no `}`")?,
        None => {
            let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let end = text
                .bytes()
                .position(|byte| !of_a_name(byte))
                .unwrap_or(text.len());
            text.split_at(end)
        }
    };
    NAMES
        .iter()
        .find(|(known, _)| *known == word)
        .map(|(_, name)| (*name, after))
        .ok_or_else(|| {
            format!(
                "`${{{word}}}` is not known; there are ${{role_name}}, ${{local_rank}}, ${{rank}} and ${{hostname}}, \
                 and $$ is a dollar sign"
            )
        })
}

impl fmt::Display for PrefixTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                Part::Text(text) => f.write_str(&text.replace('$', "$$"))?,
                Part::Name(name) => {
                    let word = NAMES
                        .iter()
                        .find(|(_, known)| known == name)
                        .map(|(word, _)| word);
                    write!(f, "${{{}}}", word.unwrap_or(&""))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn filled(text: &str) -> String {
        text.parse::<PrefixTemplate>().unwrap().fill(&Place {
            role_name: "trainer",
            local_rank: 1,
            rank: 9,
            hostname: "node-a",
        })
    }

    #[test]
    fn names_are_filled_in() {
        assert_eq!(
            filled("[${role_name}${local_rank}|${rank}@${hostname}]: "),
            "[trainer1|9@node-a]: "
        );
        assert_eq!(filled("$rank/$local_rank$$ ü"), "9/1$ ü");
        assert_eq!(filled(""), "");
        assert_eq!(filled("$$rank"), "$rank");
    }

    #[test]
    fn unknown_names_and_lone_dollars_are_refused() {
        for wrong in [
            "${ranks}",
            "$ranks",
            "${}",
            "$",
            "5 $ ",
            "${rank",
            "${ rank }",
            "$ü",
            "a\nb",
        ] {
            assert!(wrong.parse::<PrefixTemplate>().is_err(), "{wrong:?}");
        }
        let error = "${host}".parse::<PrefixTemplate>().unwrap_err();
        assert!(
            error.contains("`${host}` is not known; there are ${role_name}"),
            "{error}"
        );
    }

    fn part() -> impl Strategy<Value = String> {
        let names = prop::sample::select(vec![
            "${role_name}",
            "${local_rank}",
            "${rank}",
            "${hostname}",
            "$$",
        ]);
        prop_oneof![names.prop_map(str::to_owned), "[a-z{}:é]{1,4}"]
    }

    proptest! {
        #[test]
        fn templates_come_back_from_their_text(parts in prop::collection::vec(part(), 0..8)) {
            let text = parts.concat();
            let template: PrefixTemplate = text.parse().unwrap();
            prop_assert_eq!(&template.to_string(), &text);
            prop_assert_eq!(text.parse(), Ok(template));
        }

        #[test]
        fn no_text_breaks_the_parser(text in "[$a{}_rnk é]{0,16}") {
            let _ = text.parse::<PrefixTemplate>();
        }
    }
}
