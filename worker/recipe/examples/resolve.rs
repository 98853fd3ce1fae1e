//! Answers the launcher about recipes as the trainer does, without libtorch: `resolve RECIPE --job JSON`. For the launcher's
//! tests, whose trainers are scripts.

use std::error::Error;
use std::io;

use dtrain_common::job::Job;
use dtrain_recipe::Recipe;

fn main() -> Result<(), Box<dyn Error>> {
    let job = std::env::args().nth(3).ok_or("no job")?;
    let Job::Resolve(job) = serde_json::from_str(&job)? else { return Err("not about a recipe".into()) };
    let asked = serde_json::from_reader(io::stdin().lock())?;
    println!("{}", serde_json::to_string(&Recipe::answer(&asked, &job, None))?);
    Ok(())
}
