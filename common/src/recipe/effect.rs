//! Settings without effect, and why. A recipe that states one is an error; a saved recipe leaves them out.

use super::hints::and;
use super::{Amp, General, OptimName, ScheduleName, schedules};

/// The dotted keys without effect, each once, with the reason.
#[derive(Default)]
pub struct WithoutEffect(pub Vec<(&'static str, String)>);

impl WithoutEffect {
    /// Adds keys, separated by spaces, if `condition`. A key keeps its first reason.
    pub fn add(&mut self, condition: bool, keys: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        for key in keys.split(' ').filter(|_| condition) {
            if self.0.iter().all(|(known, _)| *known != key) {
                self.0.push((key, reason.clone()));
            }
        }
    }
}

/// The settings that only some optimizers take.
const OPTIM_SETTINGS: [(&str, &[OptimName]); 12] = {
    use OptimName::{Adam, AdamW, Lion, Muon, RmsProp, Sgd};
    [
        ("optim.betas", &[AdamW, Adam, Lion, Muon]),
        ("optim.eps", &[AdamW, Adam, RmsProp, Muon]),
        ("optim.amsgrad", &[AdamW, Adam]),
        ("optim.alpha", &[RmsProp]),
        ("optim.centered", &[RmsProp]),
        ("optim.momentum", &[Sgd, RmsProp, Muon]),
        ("optim.nesterov", &[Sgd, Muon]),
        ("optim.adjust_lr", &[Muon]),
        ("optim.newton_schulz", &[Muon]),
        ("optim.convolutions", &[Muon]),
        ("optim.adamw_lr", &[Muon]),
        ("optim.adamw_weight_decay", &[Muon]),
    ]
};

impl General {
    /// Adds the general settings without effect.
    pub fn add_without_effect(&self, list: &mut WithoutEffect) {
        self.add_optim(list);
        list.add(!self.stage.is_empty(), "train.epochs train.steps", "each [[stage]] states its length");
        let amp = self.precision.amp;
        list.add(
            !matches!(amp, Amp::Fp16 | Amp::Auto),
            "precision.loss_scale",
            format!("only float16 needs a scaled loss, and precision.amp is {:?}", amp.as_str()),
        );
    }

    fn add_optim(&self, list: &mut WithoutEffect) {
        for (key, takers) in OPTIM_SETTINGS {
            let owners = and(&takers.iter().map(|name| name.as_str()).collect::<Vec<_>>());
            let reason = format!("it applies to {owners}, and optim.name is {:?}", self.optim.name.as_str());
            list.add(!takers.contains(&self.optim.name), key, reason);
        }
        let name = self.optim.schedule.name;
        for key in schedules::SETTINGS {
            let takers = ScheduleName::ALL.iter().filter(|name| name.takes(key));
            let owners = and(&takers.map(|name| name.as_str()).collect::<Vec<_>>());
            let reason = format!("it applies to {owners}, and optim.schedule.name is {:?}", name.as_str());
            list.add(!name.takes(key), key, reason);
        }
        list.add(
            name == ScheduleName::Constant,
            "optim.schedule.per",
            "optim.schedule.name = \"constant\" changes the learning rate only in the warm-up, always by steps",
        );
    }
}
