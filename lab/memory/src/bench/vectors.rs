//! The allocator's test vectors: what a prototype of the same algorithm reserved for 6,000 perceptrons.
//!
//! The prototype wrote its sequences by hand, not as PyTorch does in every detail (it computes the
//! gradient of the weight before that of the input, and gives cuBLASLt a workspace in the backward pass
//! too). To compare allocators and nothing else, its sequence is written down here once more; the
//! rules of [`crate::graph`] are compared with measurements instead.

use super::mlp::{Layer, LayerOp, SAMPLES, SUMMARY_BATCH};
use carma_memory::alloc::{Caching, Event, Peak, Settings};
use carma_memory::{Error, MIB};
use std::collections::HashMap;
use std::path::Path;

/// A row of the vectors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vector {
    /// Reserved at most, MiB.
    pub reserved_mib: f64,
    /// Allocated at most, MiB, to a tenth.
    pub allocated_mib: f64,
}

/// The prototype's numbers by the name of the run.
///
/// # Errors
/// The file cannot be read, or a row is not as described.
pub fn read(file: &Path) -> Result<HashMap<String, Vector>, Error> {
    let bad = |what: String| Error::bad(file.display().to_string(), what);
    let mut reader = csv::Reader::from_reader(carma_files::open_bounded(file, carma_files::MOST)?);
    let mut vectors = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(|e| bad(e.to_string()))?;
        let number = |at: usize| record.get(at).and_then(|text| text.parse::<f64>().ok());
        let (Some(name), Some(reserved_mib), Some(allocated_mib)) = (record.get(0), number(2), number(3))
        else {
            return Err(bad(format!("expected name, measured, reserved, allocated; found {record:?}")));
        };
        vectors.insert(name.to_owned(), Vector { reserved_mib, allocated_mib });
    }
    Ok(vectors)
}

/// Plays the prototype's sequence for a network and a batch size.
///
/// # Errors
/// A size that the allocator refuses.
pub fn play(layers: &[Layer], batch: u64) -> Result<Peak, Error> {
    let mut run =
        Run { allocator: Caching::new(Settings::default(), (8, 0)), references: HashMap::new(), next: 0 };
    run.script(&with_softmax(layers), batch.max(1))?;
    Ok(run.allocator.peak())
}

type Handle = u64;

struct Run {
    allocator: Caching,
    references: HashMap<Handle, u32>,
    next: Handle,
}

impl Run {
    fn script(&mut self, layers: &[Layer], batch: u64) -> Result<(), Error> {
        let mut trained = Vec::new();
        for layer in layers {
            for bytes in layer.trained().into_iter().chain(layer.buffers()) {
                self.alloc(bytes)?;
            }
            trained.extend(layer.trained());
        }
        let width = layers.first().map_or(1, Layer::inputs);
        let input = self.alloc(4 * SUMMARY_BATCH * width)?;
        let (kept, output) = self.forward(layers, input, SUMMARY_BATCH)?;
        self.release_all(kept.into_iter().flatten().chain([output, input]))?;

        // Where no batch is partial, the fourth is whole too.
        let fourth = Some(SAMPLES % batch).filter(|rest| *rest > 0).unwrap_or(batch);
        let batches = [batch, batch, batch, fourth, batch, batch];
        let (mut inputs, mut results, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        let mut has_state = false;
        for batch in batches {
            let input = self.alloc(4 * batch * width)?;
            let labels = self.alloc(8 * batch)?;
            self.release_all(std::mem::replace(&mut inputs, vec![input, labels]))?;
            self.release_all(std::mem::take(&mut gradients))?;
            let (kept, output) = self.forward(layers, input, batch)?;
            self.release_all(std::mem::take(&mut results))?;
            let classes = 4 * batch * layers.last().map_or(1, |l| l.outputs);
            let log = self.alloc(classes)?;
            let loss = self.alloc(4)?;
            let of_log = self.alloc(classes)?;
            let of_output = self.alloc(classes)?;
            self.release_all([of_log, log])?;
            gradients = self.backward(layers, kept, of_output, batch)?;
            results = vec![output, loss];
            if !std::mem::replace(&mut has_state, true) {
                for bytes in &trained {
                    self.alloc(*bytes)?;
                    self.alloc(*bytes)?;
                }
            }
            let roots = trained.iter().map(|bytes| self.alloc(*bytes)).collect::<Result<Vec<_>, _>>()?;
            self.release_all(roots)?;
        }
        Ok(())
    }

    /// What each layer keeps, and the output.
    fn forward(
        &mut self,
        layers: &[Layer],
        input: Handle,
        batch: u64,
    ) -> Result<(Vec<Vec<Handle>>, Handle), Error> {
        let mut kept = Vec::with_capacity(layers.len());
        let mut x = self.hold(input);
        for layer in layers {
            if layer.kind == LayerOp::Identity {
                kept.push(Vec::new());
                continue;
            }
            if layer.kind == LayerOp::Linear {
                self.allocator.apply(&Event::CublasWorkspace { thread: 0 })?;
            }
            let out = self.alloc(4 * batch * layer.outputs)?;
            kept.push(match layer.kind {
                LayerOp::Linear => {
                    self.lt_workspace()?;
                    vec![self.hold(x)]
                }
                LayerOp::BatchNorm => {
                    vec![self.hold(x), self.alloc(4 * layer.outputs)?, self.alloc(4 * layer.outputs)?]
                }
                LayerOp::Dropout => vec![self.alloc(batch * layer.outputs)?],
                LayerOp::OfOutput => vec![self.hold(out)],
                LayerOp::OfInput | LayerOp::Slope => vec![self.hold(x)],
                LayerOp::Identity => Vec::new(),
            });
            self.release(x)?;
            x = out;
        }
        Ok((kept, x))
    }

    /// Returns the gradients of the parameters.
    fn backward(
        &mut self,
        layers: &[Layer],
        mut kept: Vec<Vec<Handle>>,
        mut gradient: Handle,
        batch: u64,
    ) -> Result<Vec<Handle>, Error> {
        let mut gradients = Vec::new();
        for (at, layer) in layers.iter().enumerate().rev() {
            if layer.kind == LayerOp::Identity {
                continue;
            }
            let inputs = 4 * batch * layer.inputs();
            let mut of_input = None;
            if layer.kind == LayerOp::Linear {
                let trained = layer.trained();
                self.allocator.apply(&Event::CublasWorkspace { thread: 1 })?;
                gradients.push(self.alloc(trained[0])?);
                self.lt_workspace()?;
                gradients.push(self.alloc(trained[1])?);
                if at > 0 {
                    of_input = Some(self.alloc(inputs)?);
                    self.lt_workspace()?;
                }
            } else {
                of_input = Some(self.alloc(inputs)?);
                let product = if layer.kind == LayerOp::Slope { self.alloc(inputs)? } else { 0 };
                for bytes in layer.trained() {
                    gradients.push(self.alloc(bytes)?);
                }
                self.release(product)?;
            }
            self.release(gradient)?;
            self.release_all(std::mem::take(&mut kept[at]))?;
            gradient = of_input.unwrap_or_default();
        }
        Ok(gradients)
    }

    fn lt_workspace(&mut self) -> Result<(), Error> {
        let workspace = self.alloc(MIB)?;
        self.release(workspace)
    }

    fn alloc(&mut self, bytes: u64) -> Result<Handle, Error> {
        self.next += 1;
        self.allocator.alloc(self.next, bytes)?;
        self.references.insert(self.next, 1);
        Ok(self.next)
    }

    fn hold(&mut self, handle: Handle) -> Handle {
        *self.references.entry(handle).or_default() += 1;
        handle
    }

    /// One reference less; handle 0 is none.
    fn release(&mut self, handle: Handle) -> Result<(), Error> {
        if let Some(references) = self.references.get_mut(&handle) {
            *references -= 1;
            if *references == 0 {
                self.references.remove(&handle);
                return self.allocator.free(handle);
            }
        }
        Ok(())
    }

    fn release_all(&mut self, handles: impl IntoIterator<Item = Handle>) -> Result<(), Error> {
        handles.into_iter().try_for_each(|handle| self.release(handle))
    }
}

/// The prototype put a softmax behind every network that had neither that nor a sigmoid.
fn with_softmax(layers: &[Layer]) -> Vec<Layer> {
    let mut layers = layers.to_vec();
    let has = layers.iter().any(|l| matches!(l.name.as_str(), "Softmax" | "Sigmoid"));
    if let (Some(last), false) = (layers.last().cloned(), has) {
        layers.push(Layer { kind: LayerOp::OfOutput, name: "Softmax".to_owned(), params: 0, ..last });
    }
    layers
}
