//! Defaults that depend on other settings. They are filled in, so that a saved recipe is complete.

use super::{AdjustLr, Amp, Best, General, OptimName, schedules};

impl General {
    /// Fills in the defaults that depend on other settings.
    pub fn fill(&mut self) {
        if matches!(self.precision.amp, Amp::Auto | Amp::Fp16) {
            // The default of PyTorch's GradScaler.
            self.precision.loss_scale.get_or_insert(65536.0);
        }
        if let Some(stop) = &mut self.train.stop_early {
            stop.figure.get_or_insert(self.checkpoint.best.clone().unwrap_or_else(Best::least_loss));
        }
        let optim = &mut self.optim;
        optim.weight_decay.get_or_insert(match optim.name {
            OptimName::AdamW => 0.01,
            OptimName::Muon => 0.1,
            _ => 0.0,
        });
        match optim.name {
            OptimName::AdamW | OptimName::Adam => {
                optim.betas.get_or_insert([0.9, 0.999]);
                optim.eps.get_or_insert(1e-8);
            }
            OptimName::Sgd => {
                optim.momentum.get_or_insert(0.0);
                optim.nesterov.get_or_insert(false);
            }
            OptimName::RmsProp => {
                optim.alpha.get_or_insert(0.99);
                optim.eps.get_or_insert(1e-8);
                optim.momentum.get_or_insert(0.0);
            }
            OptimName::Lion => {
                optim.betas.get_or_insert([0.9, 0.99]);
            }
            OptimName::Muon => {
                optim.momentum.get_or_insert(0.95);
                optim.nesterov.get_or_insert(true);
                optim.betas.get_or_insert([0.9, 0.999]);
                optim.eps.get_or_insert(1e-8);
                optim.adamw_lr.get_or_insert(match optim.adjust_lr {
                    AdjustLr::Original => 1e-3,
                    AdjustLr::MatchRmsAdamW => optim.lr,
                });
                optim.adamw_weight_decay.get_or_insert(0.01);
            }
        }
        schedules::fill(&mut optim.schedule);
    }
}
