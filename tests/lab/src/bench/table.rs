//! A part of a report: its cases, ratios and goals.

use super::case::Case;
use super::figures::Metric;
use crate::report::Goal;

/// A figure of a case with a goal that does not depend on the other side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Target {
    pub(super) case: Case,
    pub(super) metric: Metric,
    pub(super) goal: Goal,
}

/// A ratio of two cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Comparison {
    pub(super) over: Case,
    pub(super) under: Case,
    pub(super) metric: Metric,
    pub(super) goal: Option<Goal>,
}

/// A part of a report: a table of cases, a table of ratios, and a table of figures with goals.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) cases: Vec<Case>,
    pub(super) metrics: Vec<Metric>,
    /// The unit of [`Metric::Rate`].
    pub(super) unit: &'static str,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) targets: Vec<Target>,
}
