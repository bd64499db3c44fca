//! The optimizer step: state at the first, temporary lists at each.
//!
//! Source: `torch/optim/*.py` (`_multi_tensor_*`, the default on GPUs), bitsandbytes' 8-bit Adam.

use super::player::Player;
use super::store::{Storage, StorageKind};
use crate::graph::ParamId;
use crate::{Error, Optimizer};

/// Parameters with fewer elements keep 32-bit states under 8-bit Adam (`min_8bit_size`).
const LEAST_FOR_8_BITS: u64 = 4096;
/// Elements that share a scale under 8-bit Adam.
const BLOCK_OF_8_BITS: u64 = 256;

impl Player<'_, '_> {
    /// The optimizer's constructor: Adagrad has its state from there on.
    pub(super) fn optimizer_made(&mut self) -> Result<(), Error> {
        if self.task.mode == crate::Mode::Train && self.task.optimizer == Optimizer::Adagrad {
            for param in self.trained() {
                self.state_of(param, 1)?;
            }
        }
        Ok(())
    }

    /// `optimizer.step()`.
    pub(super) fn optimizer_step(&mut self) -> Result<(), Error> {
        let params: Vec<ParamId> =
            self.trained().into_iter().filter(|p| self.param_grads[p.0 as usize].is_some()).collect();
        if self.state.is_empty() {
            for param in &params {
                match self.task.optimizer {
                    Optimizer::Sgd | Optimizer::Adagrad => {}
                    Optimizer::SgdMomentum | Optimizer::Rmsprop => self.state_of(*param, 1)?,
                    Optimizer::Adam | Optimizer::Adamw => self.state_of(*param, 2)?,
                    Optimizer::AdamFused => {
                        // The step count lies on the GPU.
                        let step = self.new_storage(4, StorageKind::Optimizer)?;
                        self.state.push(step);
                        self.state_of(*param, 2)?;
                    }
                    Optimizer::Adam8bit => self.state_in_8_bits(*param)?,
                }
            }
        }
        let lists = match self.task.optimizer {
            Optimizer::Adam | Optimizer::Adamw | Optimizer::Rmsprop => 1,
            Optimizer::Adagrad => 2,
            Optimizer::Sgd | Optimizer::SgdMomentum | Optimizer::AdamFused | Optimizer::Adam8bit => 0,
        };
        let mut temporary: Vec<Storage> = Vec::new();
        for _ in 0..lists {
            for param in &params {
                let bytes = self.optimised_bytes(*param);
                temporary.push(self.new_storage(bytes, StorageKind::Optimizer)?);
            }
        }
        self.store.release_all(temporary)
    }

    fn trained(&self) -> Vec<ParamId> {
        let params = (0..self.graph.params.len() as u32).map(ParamId);
        params.filter(|p| self.trainable(*p)).collect()
    }

    /// Bytes of a parameter as the optimizer of this GPU sees it.
    fn optimised_bytes(&self, param: ParamId) -> u64 {
        let bytes = self.param_bytes(param);
        if self.splits_gradients() { self.parallel.part(bytes) } else { bytes }
    }

    fn state_of(&mut self, param: ParamId, count: usize) -> Result<(), Error> {
        for _ in 0..count {
            let state = self.new_storage(self.optimised_bytes(param), StorageKind::Optimizer)?;
            self.state.push(state);
        }
        Ok(())
    }

    fn state_in_8_bits(&mut self, param: ParamId) -> Result<(), Error> {
        let elements = self.optimised_bytes(param) / self.param_width(param).max(1);
        for _ in 0..2 {
            let sizes = if elements < LEAST_FOR_8_BITS {
                [4 * elements, 0]
            } else {
                [elements, 4 * elements.div_ceil(BLOCK_OF_8_BITS)]
            };
            for bytes in sizes {
                let state = self.new_storage(bytes, StorageKind::Optimizer)?;
                self.state.push(state);
            }
        }
        Ok(())
    }
}
