//! What a part of a report compares.

use super::case::Case;
use super::figures::Metric;
use crate::report::Goal;

/// A figure of a case that has a goal of its own, whatever the other side does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Target {
    pub(super) case: Case,
    pub(super) metric: Metric,
    pub(super) goal: Goal,
}

/// Two cases, one over the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Comparison {
    pub(super) over: Case,
    pub(super) under: Case,
    pub(super) metric: Metric,
    pub(super) goal: Option<Goal>,
}

/// A part of a report: a table of cases, one of ratios and one of figures with goals.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) cases: Vec<Case>,
    pub(super) metrics: Vec<Metric>,
    /// What [`Metric::Rate`] counts here.
    pub(super) unit: &'static str,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) targets: Vec<Target>,
}
