#![allow(clippy::unwrap_used)]
use super::super::tokenizer::tests::{expected, tokenizer};
use super::*;

fn template(source: &str) -> ChatTemplate {
    let special = [("bos_token", "<|im_start|>"), ("eos_token", "<|endoftext|>")];
    let special = special.map(|(name, token)| (name.to_owned(), token.to_owned()));
    ChatTemplate::new(source, special.into()).unwrap()
}

fn render(source: &str, messages: &str) -> Result<Rendered, String> {
    template(source).render(&serde_json::from_str(messages).unwrap())
}

const CHAT: &str = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;

#[test]
fn chats_are_those_of_transformers() {
    let expected = expected();
    let tokenizer = tokenizer("bytes");
    for case in expected["chats"].as_array().unwrap() {
        let messages = case["messages"].as_str().unwrap();
        let rendered = render(case["template"].as_str().unwrap(), messages).unwrap();
        assert_eq!(rendered.text, case["text"], "{messages}");
        assert!(!rendered.answers.is_empty());
        let Some(answers) = case["answers"].as_array() else {
            let said: Vec<&str> =
                rendered.answers.iter().map(|range| &rendered.text[range.clone()]).collect();
            assert_eq!(said.len(), messages.matches("\"assistant\"").count());
            assert!(said.iter().all(|said| said.ends_with("<|im_end|>\n")), "{said:?}");
            continue;
        };
        // The tokens that the assistant writes are those of transformers.
        let tokens = tokenizer.encode_with_places(&rendered.text).unwrap();
        let ids: Vec<u32> = tokens.iter().map(|(token, _)| *token).collect();
        assert_eq!(serde_json::json!(ids), answers[0]);
        let is_answer =
            |place: &Range<usize>| rendered.answers.iter().any(|range| range.contains(&place.start));
        let mask: Vec<u8> = tokens.iter().map(|(_, place)| u8::from(is_answer(place))).collect();
        assert_eq!(serde_json::json!(mask), answers[1], "{:?}", rendered.text);
    }
}

#[test]
fn unknown_variables_are_named() {
    let error = render("{{ messages[0].content }}{{ custom }} {{ other }}", CHAT).unwrap_err();
    assert!(error.contains("among `custom`, `other`") && error.contains("{% set NAME = \"\" %}"), "{error}");
    // A question has no effect.
    let fine = "{% if custom is defined %}x{% endif %}{% if other %}y{% endif %}{{ messages[1].content }}";
    let error = render(fine, "[]").unwrap_err();
    assert!(error.contains("uses a value that the chat lacks"), "{error}");
    // A variable of which the template asks first is none of the unknown ones.
    let fine = "{% if custom is defined %}x{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    assert_eq!(render(fine, CHAT).unwrap().text, "ab");
}

#[test]
fn refusals_and_wrong_templates_say_why() {
    let error = render("{{ raise_exception('roles must alternate') }}", CHAT).unwrap_err();
    assert!(error.contains("refuses it: roles must alternate"), "{error}");
    let first = "{% for m in messages %}{{ m.content }}{% endfor %}{% if not messages %}{{ raise_exception('no messages') }}{% endif %}";
    let error = render(first, r#"[{"role": "assistant", "content": "b"}]"#).unwrap_err();
    assert!(
        error.ends_with(
            "without a message before it the chat template refuses it: no messages (line 1); begin with the user"
        ),
        "{error}"
    );
    assert!(ChatTemplate::new("{% for x in %}", BTreeMap::new()).is_err());
    // Earlier messages change when later ones follow.
    let error = render("{% for m in messages %}{{ m.content }}/{{ messages | length }} {% endfor %}", CHAT)
        .unwrap_err();
    assert!(error.contains("{% generation %}"), "{error}");
}

#[test]
fn dates_are_fixed_and_json_is_python_s() {
    let text = render("{{ strftime_now('%d %b %Y') }}", "[]").unwrap().text;
    assert_eq!(text, "26 Jul 2024");
    let text = render("{{ messages | tojson }}", r#"[{"z": [1, "<ä&'>"], "a": null}]"#).unwrap().text;
    assert_eq!(text, r#"[{"z": [1, "<ä&'>"], "a": null}]"#);
}

#[test]
fn marks_keep_the_controls_of_a_block() {
    let (text, found) = marked("a {%- generation -%} b {% endgeneration %}{% if x %}");
    assert!(found);
    assert_eq!(text, "a {%- if true %}\u{fdd0}{% endif -%} b {% if true %}\u{fdd1}{% endif %}{% if x %}");
    assert!(!marked("{% generations %} {{ '{%' }} {%").1);
}
