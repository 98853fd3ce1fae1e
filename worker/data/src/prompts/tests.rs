#![allow(clippy::unwrap_used)]
use super::*;
use crate::tokenizer::tests::tokenizer;

fn prompts(form: PromptForm, repeat: &[(&str, usize)]) -> Prompts {
    let repeat = repeat.iter().map(|(token, count)| ((*token).to_owned(), *count));
    Prompts::new(tokenizer("bytes"), form, repeat.collect()).unwrap()
}

#[test]
fn tokens_of_images_are_repeated() {
    let prompts = prompts(PromptForm::Begin, &[("<image>", 3)]);
    let image = prompts.tokenizer().number("<image>").unwrap();
    let tokens = prompts.encode("<image>x").unwrap().unwrap();
    assert_eq!((tokens.len(), &tokens[..3]), (4, &[image; 3][..]));
    let reason = prompts.encode("x").unwrap().unwrap_err();
    assert_eq!(reason, "the text has no `<image>`; write it where the image stands");
}

#[test]
fn a_chat_is_written_up_to_its_answer() {
    let prompts = prompts(PromptForm::Chat, &[]);
    let text = |messages: &str| {
        let tokens = prompts.encode(messages).unwrap()?;
        // Special tokens have no text.
        Ok::<_, String>(prompts.tokenizer().decode(&tokens).unwrap())
    };
    let asked = text(&chat_of("a \"b\"")).unwrap();
    assert!(asked.contains("a \"b\"") && asked.trim_end().ends_with("assistant"), "{asked}");
    let user = r#"{"role": "user", "content": "x"}"#;
    let answer = r#"{"role": "assistant", "content": "y"}"#;
    let [open, answered] =
        [format!("[{user}]"), format!("[{user}, {answer}]")].map(|chat| text(&chat).unwrap());
    assert_eq!(open, answered);
    let longer = text(&format!("[{user}, {answer}, {user}]")).unwrap();
    assert!(longer.contains('y') && longer.trim_end().ends_with("assistant"), "{longer}");
    for (chat, part) in [
        (format!("[{answer}]"), "no message before the answer"),
        ("[]".to_owned(), "no message before the answer"),
        ("x".to_owned(), "the chat is no JSON"),
        ("1".to_owned(), "give a list"),
    ] {
        let reason = text(&chat).unwrap_err();
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn a_piece_of_a_text_does_not_begin_it() {
    let of = |form| {
        let prompts = Prompts::new(tokenizer("words"), form, BTreeMap::new()).unwrap();
        prompts.encode("the king").unwrap().unwrap()
    };
    let [piece, begin] = [PromptForm::Piece, PromptForm::Begin].map(of);
    assert_eq!((begin.len(), &begin[1..]), (piece.len() + 1, &piece[..]));
    assert!(begin[0] != piece[0]);
}

#[test]
fn an_empty_prompt_is_no_text_of_the_tokens_that_begin_one() {
    for form in [PromptForm::Begin, PromptForm::Piece] {
        let prompts = Prompts::new(tokenizer("words"), form, BTreeMap::new()).unwrap();
        assert_eq!(
            prompts.encode(" ").unwrap().unwrap_err(),
            "the prompt is empty; write at least one token"
        );
    }
}
