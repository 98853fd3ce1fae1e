//! dtrain-recipes: answers about recipes as dtrain-worker does, without libtorch, whose start takes longer than a check:
//! `dtrain-recipes RECIPE --job JSON`.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use dtrain_common::exit::ExitStatus;
use dtrain_common::question::Question;
use dtrain_recipe::Recipe;

fn main() -> ExitCode {
    match answer() {
        Ok(text) => {
            print!("{text}");
            ExitStatus::Success.into()
        }
        Err(error) => {
            eprintln!("dtrain-recipes: error: {error}");
            ExitStatus::Usage.into()
        }
    }
}

fn answer() -> Result<String, Box<dyn Error>> {
    let asked = std::env::args().nth(3).ok_or("only dtrain starts this program; use `dtrain launch`")?;
    match serde_json::from_str(&asked)? {
        Question::Resolve(question) => {
            let asked = serde_json::from_reader(io::stdin().lock())?;
            Ok(serde_json::to_string(&Recipe::answer(&asked, &question, None))?)
        }
        Question::Schema => Ok(serde_json::to_string_pretty(&Recipe::schema(None)?)? + "\n"),
        _ => Err("only dtrain-worker answers this question".into()),
    }
}
