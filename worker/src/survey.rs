//! Rank 0's survey of the data on all ranks. Its long lists are once in the memory of each node.

use std::io;
use std::thread;
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_common::recipe::Recipe;
use dtrain_shared_memory::MemoryError;
use serde_json::Value;

use crate::collectives::Rendezvous;
use crate::data::packed::{PLACE, Packed, attach};
use crate::error::{Result, WorkerError};
use crate::tasks::{BuildTask, SurveyContext};

/// The ranks of one node that have answered whether they can map the lists, and those that cannot.
const ANSWERS: &str = "survey-answers";
const WANTED: &str = "survey-wanted";

/// A survey as JSON. Its references to lists are valid as long as the lists live.
pub(crate) struct Surveyed {
    pub(crate) facts: Value,
    pub(crate) lists: Vec<Packed<u8>>,
}

impl Surveyed {
    /// Surveys the data of the recipe.
    pub(crate) fn of<T: BuildTask>(recipe: &Recipe) -> Result<Self> {
        let survey = SurveyContext::with_log(|context| T::survey(recipe, context))?;
        let mut facts = serde_json::to_value(&survey)?;
        // This process's own lists can always be mapped.
        let lists = attach(&mut facts, &mut |name, _| Err(unmapped(name)))?;
        Ok(Self { facts, lists })
    }
}

/// Serves the lists to ranks that cannot map rank 0's memory. Rank 0 calls it after the facts were announced.
pub(crate) fn serve(
    facts: &Value,
    lists: &[Packed<u8>],
    rendezvous: &Rendezvous,
    env: &WorkerEnv,
) -> Result<()> {
    if lists.is_empty() || env.world_size == 1 {
        return Ok(());
    }
    if env.is_one_node() {
        while rendezvous.count(ANSWERS, 0)? + 1 < env.world_size as i64 {
            thread::sleep(Duration::from_millis(1));
        }
        if rendezvous.count(WANTED, 0)? == 0 {
            return Ok(());
        }
    }
    lists.iter().try_for_each(|list| rendezvous.publish(&list.name(), list))?;
    publish_facts(facts, rendezvous, env)
}

/// Maps the lists of rank 0's facts, or gets them: the first rank of another node for all ranks there. Every other
/// rank calls it.
pub(crate) fn receive(
    facts: &mut Value,
    rendezvous: &Rendezvous,
    env: &WorkerEnv,
) -> Result<Vec<Packed<u8>>> {
    let mut is_told = false;
    if !env.is_one_node() && env.local_rank > 0 && has_lists(facts) {
        *facts = serde_json::from_slice(&rendezvous.fetch_whole(&facts_of_node(env))?)?;
        is_told = true;
    }
    let mut missing = 0;
    let mapped = attach(&mut facts.clone(), &mut |name, _| {
        missing += 1;
        Err::<_, WorkerError>(unmapped(name))
    });
    if env.is_one_node() && has_lists(facts) {
        rendezvous.count(WANTED, missing)?;
        rendezvous.count(ANSWERS, 1)?;
    }
    drop(mapped);
    let lists = attach(facts, &mut |name, bytes| Ok::<_, WorkerError>(rendezvous.fetch(name, bytes)?))?;
    if !env.is_one_node() && !is_told && !lists.is_empty() {
        publish_facts(facts, rendezvous, env)?;
    }
    Ok(lists)
}

fn publish_facts(facts: &Value, rendezvous: &Rendezvous, env: &WorkerEnv) -> Result<()> {
    Ok(rendezvous.publish_whole(&facts_of_node(env), &serde_json::to_vec(facts)?)?)
}

fn facts_of_node(env: &WorkerEnv) -> String {
    format!("survey-of-node-{}", env.group_rank)
}

/// Returns whether any part of the facts is a reference to a list.
fn has_lists(facts: &Value) -> bool {
    match facts {
        Value::Object(fields) => fields.contains_key(PLACE) || fields.values().any(has_lists),
        Value::Array(values) => values.iter().any(has_lists),
        _ => false,
    }
}

fn unmapped(name: &str) -> WorkerError {
    let reason = io::Error::other("this process may not open its own files in /proc");
    MemoryError::System(format!("map list {name}"), reason).into()
}
