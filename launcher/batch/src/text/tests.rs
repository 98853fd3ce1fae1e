#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::process::Command;

#[test]
fn names_are_letters_digits_and_three_signs() {
    for good in ["a", "demo-2", "A.b_c"] {
        assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
    }
    let long = "a".repeat(53);
    for bad in ["", "1a", "-a", "a b", "a\nb", "a%j", "\u{e9}", "a;b", &long] {
        assert!(bad.parse::<Name>().is_err(), "{bad:?}");
    }
}

#[test]
fn names_of_recipes_become_names_of_jobs() {
    for (text, name) in
        [("demo", "demo"), ("My Recipe", "my-recipe"), ("2024", "r2024"), ("", "dtrain"), ("--", "dtrain")]
    {
        assert_eq!(Name::from_any(text).as_str(), name);
    }
}

#[test]
fn values_cannot_begin_a_line_or_a_command() {
    for good in ["abc", "a,b", "proj:x", "a100&nvlink", "[rack1|rack2]"] {
        assert_eq!(good.parse::<Value>().unwrap().as_str(), good);
    }
    for bad in ["", "a b", "a\n#SBATCH --wrap=x", "a'b", "a\"b", "a\\b", "$(id)", "a;b", "a`b", "a#b", "{a}"]
    {
        assert!(bad.parse::<Value>().is_err(), "{bad:?}");
    }
}

#[test]
fn control_characters_are_no_words() {
    for bad in ["a\0b", "\u{1b}[31m", "\r", "\u{7f}", "\u{85}"] {
        assert!(matches!(bad.parse::<Word>(), Err(TextError::Control { .. })), "{bad:?}");
    }
}

/// Returns what a shell passes to a program for these words.
fn through_shell(shell: &str, words: &[Word]) -> String {
    let quoted: Vec<_> = words.iter().map(Word::quoted).collect();
    let script = format!("printf '%s\\001' {}", quoted.join(" "));
    let done = Command::new(shell).args(["-c", &script]).env_clear().output().unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn words_pass_through_shells_unchanged(
        texts in prop::collection::vec("[ -~\n\t]{0,12}|[a$`'\"\\\\!#~=*;&|<>(){}\n -]{0,8}|\\PC{0,6}", 1..5)
    ) {
        let words: Vec<Word> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        prop_assume!(!words.is_empty());
        let expected: String = words.iter().map(|word| format!("{}\u{1}", word.text())).collect();
        prop_assert_eq!(through_shell("sh", &words), expected.clone());
        prop_assert_eq!(through_shell("bash", &words), expected);
    }

    #[test]
    fn any_text_is_a_value_and_a_name_or_an_error(text: String) {
        if let Ok(value) = text.parse::<Value>() {
            prop_assert!(!value.as_str().contains(char::is_whitespace));
        }
        let _ = text.parse::<Name>();
        prop_assert!(Name::from_any(&text).as_str().parse::<Name>().is_ok());
    }
}
