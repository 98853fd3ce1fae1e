//! Token files, tokenizers, and tables of texts.

use super::*;

/// A file of tokens with an index of its documents.
pub(super) const TOKENS: &str = r#"
task = "lm"
[data]
kind = "tokens"
root = "/data/corpus"
train = "train"
test = "val"
dtype = "uint32"
vocabulary = 50304
documents = "index"
pack = true
[model]
name = "gpt"
context = 64
[train]
steps = 50
"#;

/// Chats about images for a program.
pub(super) const CHATS: &str = r#"
task = "lm"
[data]
kind = "table"
root = "/data/chats.csv"
fields = { image = "image:photo", tokens = "chat:messages" }
tokenizer = "/models/small/tokenizer.json"
repeat = { "<image>" = 16 }
image_size = 32
[model]
file = "/models/vlm.pt2"
[train]
steps = 50
"#;

const ANSWERS: &str = "task = \"lm\"\n[data]\nkind = \"table\"\nroot = \"/d.csv\"\ntokenizer = \"bytes\"\nfields = { tokens = \
                       \"text:prompt,answer\" }\n[train]\nsteps = 1\n";

#[test]
fn token_files_need_a_vocabulary() {
    let recipe = parse(TOKENS, &[]).unwrap();
    assert!(recipe.is_text() && recipe.has_documents() && !recipe.has_texts());
    let without = TOKENS.replace("vocabulary = 50304\n", "");
    let error = parse(&without, &[]).unwrap_err().to_string();
    assert!(error.contains("data.vocabulary") && error.contains("50257 for GPT-2"), "{error}");
    let named = parse(&without, &["data.tokenizer=/m/tokenizer.json"]).unwrap();
    assert_eq!(named.data.tokenizer, Tokenizer::File("/m/tokenizer.json".into()));
    expect_error(
        TOKENS,
        &["data.tokenizer=/m/tokenizer.json"],
        "data.vocabulary",
        "the tokenizer's file determines it",
    );
    expect_set_error(TOKENS, "data.tokenizer=bytes", "a token file has numbers");
    expect_set_error(TOKENS, "data.tokenizer=gpt2", "the path of a tokenizer.json");
    expect_set_error(TOKENS, "data.documents=lines", "\"tokens\" takes \"none\" or \"index\"");
    expect_set_error(samples::LM, "data.documents=index", "takes \"none\", \"files\" or \"lines\"");
    expect_set_error(samples::LM, "data.dtype=uint32", "data.kind = \"tokens\"");
    expect_set_error(samples::LM, "data.vocabulary=300", "data.kind = \"tokens\"");
    expect_set_error(samples::LM_GENERATED, "data.tokenizer=a.json", "characters or bytes");
}

#[test]
fn a_table_of_texts_names_its_tokenizer() {
    let chats = parse(CHATS, &[]).unwrap();
    assert!(chats.has_texts() && !chats.is_text() && chats.has(ColumnKind::Image));
    assert_eq!(chats.data.augment, Augment::None);
    let fields: Vec<_> = chats.fields().unwrap().into_iter().map(|columns| columns.field).collect();
    assert_eq!(fields, ["image", "tokens"]);
    let answers = parse(ANSWERS, &[]).unwrap();
    assert_eq!(answers.fields().unwrap()[0].columns, ["prompt", "answer"]);
    expect_set_error(ANSWERS, "data.fields.tokens=text:a,b,c", "one column, or two, not 3");
    expect_set_error(ANSWERS, "data.fields.tokens=chat:a,b", "one column, not 2");
    expect_set_error(ANSWERS, "data.tokenizer=chars", "name the tokenizer.json of the texts");
    expect_set_error(ANSWERS, "data.fields.image=image:a", "the network has no input for this field");
    expect_set_error(ANSWERS, "data.fields.attention_mask=numbers:a", "the name of the mask of the text");
    expect_error(samples::TABLE, &["data.repeat.x=2"], "data.repeat", "the data has no such texts");
    expect_set_error(ANSWERS, "data.augment=shift", "not \"shift\"");
}
