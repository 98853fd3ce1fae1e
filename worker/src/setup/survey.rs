//! Rank 0's survey of the data on all ranks. Its long lists are once in the memory of each node.

use std::io;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::Recipe;
use dtrain_shared_memory::MemoryError;
use serde::Serialize;
use serde_json::Value;

use crate::collectives::Rendezvous;
use crate::data::packed::{PLACE, Packed, attach, prefer};
use crate::setup::error::{Result, WorkerError};
use crate::tasks::{BuildTask, SurveyContext};

/// A rank's answer whether it has mapped all lists, and its message when it has the others.
const ANSWER: &str = "survey-answer";
const MAPPED: &[u8] = b"mapped";
const UNMAPPED: &[u8] = b"unmapped";
const RECEIVED: &str = "survey-received";

/// A survey as JSON. Its references to lists are valid as long as the lists live.
pub(crate) struct Surveyed {
    pub(crate) facts: Value,
    pub(crate) lists: Vec<Packed<u8>>,
}

impl Surveyed {
    /// Surveys the data of the recipe.
    pub(crate) fn of<T: BuildTask>(recipe: &Recipe) -> Result<Self> {
        SurveyContext::with_log(|context| Self::with::<T>(recipe, context))
    }

    /// Surveys the data of the recipe in this context.
    pub(crate) fn with<T: BuildTask>(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Self> {
        Self::of_survey(&T::survey(recipe, context)?)
    }

    /// Takes a survey as it is.
    pub(crate) fn of_survey(survey: &impl Serialize) -> Result<Self> {
        let mut facts = serde_json::to_value(survey)?;
        // This process's own lists can always be mapped.
        let lists = attach(&mut facts, &mut |name, _| Err(unmapped(name)))?;
        Ok(Self { facts, lists })
    }
}

/// Serves the lists to ranks that can map neither rank 0's memory nor their node's. They are in the store only until these
/// ranks have them: it lives as long as the launcher and has little room. Rank 0 calls it after the facts were announced.
pub(crate) fn serve(
    facts: &Value,
    lists: &[Packed<u8>],
    rendezvous: &Rendezvous,
    env: &WorkerEnv,
) -> Result<()> {
    if lists.is_empty() || env.world_size == 1 {
        return Ok(());
    }
    if !env.is_one_node() {
        publish_facts(facts, rendezvous, env)?;
    }
    if rendezvous.fetch_of_others(ANSWER)?.iter().all(|answer| answer == MAPPED) {
        return Ok(());
    }
    lists.iter().try_for_each(|list| rendezvous.publish(&list.name(), list))?;
    rendezvous.fetch_of_others(RECEIVED)?;
    Ok(lists.iter().try_for_each(|list| rendezvous.withdraw(&list.name(), list.len() as u64))?)
}

/// Maps the lists of rank 0's facts: on other nodes those that their first rank has of its `own` survey. Gets them from rank 0
/// where that is impossible. Every other rank calls it.
pub(crate) fn receive(
    facts: &mut Value,
    own: &[Packed<u8>],
    rendezvous: &Rendezvous,
    env: &WorkerEnv,
) -> Result<Vec<Packed<u8>>> {
    if !has_lists(facts) {
        return Ok(Vec::new());
    }
    let is_told = !env.is_one_node() && env.local_rank > 0;
    if is_told {
        *facts = serde_json::from_slice(&rendezvous.fetch_whole(&facts_of_node(env))?)?;
    }
    prefer(facts, own);
    let mut attached = facts.clone();
    let mapped = attach(&mut attached, &mut |name, _| Err::<_, WorkerError>(unmapped(name)));
    if mapped.is_ok() {
        *facts = attached;
    }
    if !env.is_one_node() && !is_told {
        // If this rank has no lists yet, the others of its node find that out too.
        publish_facts(facts, rendezvous, env)?;
    }
    rendezvous.publish_of_rank(ANSWER, if mapped.is_ok() { MAPPED } else { UNMAPPED })?;
    let lists = match mapped {
        Ok(lists) => lists,
        Err(_) => attach(facts, &mut |name, bytes| Ok::<_, WorkerError>(rendezvous.fetch(name, bytes)?))?,
    };
    rendezvous.publish_of_rank(RECEIVED, b"")?;
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
