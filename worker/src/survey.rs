//! Rank 0's survey of the data on all ranks. Its long lists are once in the memory of each node.

use std::io;

use dtrain_common::env::WorkerEnv;
use dtrain_common::recipe::Recipe;
use dtrain_shared_memory::MemoryError;
use serde_json::Value;

use crate::collectives::Rendezvous;
use crate::data::packed::{PLACE, Packed, attach};
use crate::error::{Result, WorkerError};
use crate::tasks::{BuildTask, SurveyContext};

/// The answers of one node's ranks: whether they can map all lists.
const ANSWER: &str = "survey-answer";
const MAPPED: &[u8] = b"mapped";
const UNMAPPED: &[u8] = b"unmapped";

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
        let answers = rendezvous.fetch_of_others(ANSWER)?;
        if answers.iter().all(|answer| answer == MAPPED) {
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
    if env.is_one_node() && has_lists(facts) {
        let mapped = attach(&mut facts.clone(), &mut |name, _| Err::<_, WorkerError>(unmapped(name)));
        rendezvous.publish_of_rank(ANSWER, if mapped.is_ok() { MAPPED } else { UNMAPPED })?;
    }
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
    let reason =
        io::Error::other("its descriptor cannot be duplicated; raise the limit of open files (ulimit -n)");
    MemoryError::System(format!("map list {name}"), reason).into()
}
