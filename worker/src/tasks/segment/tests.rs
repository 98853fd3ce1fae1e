#![allow(clippy::unwrap_used)]
use tch::Device;

use super::*;

#[test]
fn figures_follow_from_classes_and_size() {
    let recipe = "task = \"segment\"\n[data]\nkind = \"generated\"\nclasses = 4\nimage_size = 16\ntrain_samples = 2\n\
                  test_samples = 2\n[model]\nwidth = 2\ndepth = 2\n[train]\nsteps = 1\n";
    let recipe = Recipe::parse("test", recipe, &[]).unwrap();
    let mut registry = crate::models::Registry::new(Device::Cpu);
    let context =
        BuildContext { registry: &mut registry, local_ranks: 1, cache: crate::data::CacheBudget::default() };
    let task = Segment::build(&recipe, Survey::Generated, context).unwrap();
    let sums = vec![1.0, 1.0, 1.0, 0.0, 3.0, 3.0, 1.0, 0.0, 6.0];
    let totals = Totals { loss_sum: 7.0, weight: 512.0, sums };
    let names: Vec<_> = Task::figures(&task, &totals).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["mean_iou", "pixel_accuracy"]);
    assert_eq!(Task::figures(&task, &totals)[1].1, 0.5);
    assert_eq!((task.facts().weight_per_sample, task.facts().sums, task.facts().classes), (256.0, 9, 4));
}
