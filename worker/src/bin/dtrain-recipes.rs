//! dtrain-recipes: answers about recipes as dtrain-worker does, without libtorch, whose start takes longer than a check:
//! `dtrain-recipes RECIPE --question JSON`.

use std::error::Error;
use std::io;

use dtrain_common::question::Question;
use dtrain_recipe::Recipe;

fn main() -> Result<(), Box<dyn Error>> {
    let question = std::env::args().nth(3).ok_or("dtrain starts this program, to ask what a recipe means")?;
    match serde_json::from_str(&question)? {
        Question::Resolve(question) => {
            let asked = serde_json::from_reader(io::stdin().lock())?;
            print!("{}", serde_json::to_string(&Recipe::answer(&asked, &question, None))?);
        }
        Question::Schema => println!("{}", serde_json::to_string_pretty(&Recipe::schema(None)?)?),
        _ => return Err("only dtrain-worker does this job".into()),
    }
    Ok(())
}
