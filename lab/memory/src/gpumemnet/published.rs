//! GPUMemNet as its authors published it (itu-rad/GPUMemNet, commit f01eb05): their six ensembles, run from their
//! weights, with their features.
//!
//! Kept as the comparison. Its features are raw counts, its answer is the upper edge of a class, its
//! classes contain the CUDA context of its campaign (1,429 MiB on an A100 with eager loading) and end at
//! 48,000 MiB (6,000 for MLPs). Its attention runs across the batch; serving asks for one task at a time, and so does
//! this.

use super::checkpoint::{Tensor, Tensors};
use carma_memory::gpumemnet::published::{extras, tokens, whole};
use carma_memory::gpumemnet::{AuthorsNetworks, Ensemble, Family, ModelLayers};
use carma_memory::{Error, Estimate, MiB, ModelTask, Tier};
use carma_nn::{BatchNorm, Encoder, LayerNorm, Linear, Mat, Mlp, Segments, Weights, relu};
use std::path::{Path, PathBuf};

/// PyTorch's default in both normalisations.
const EPS: f32 = 1e-5;

/// The folder of the authors' checkpoints.
#[derive(Debug, Clone)]
pub struct Folder(
    /// Its path.
    pub PathBuf,
);

impl AuthorsNetworks for Folder {
    fn estimate(&self, ensemble: Ensemble, model: &ModelLayers, task: &ModelTask) -> Result<Estimate, Error> {
        Ok(Published::read(&self.0, model.family, ensemble)?.estimate(model, task))
    }
}

/// One of the six published ensembles.
#[derive(Debug, Clone)]
pub struct Published {
    family: Family,
    net: Net,
}

#[derive(Debug, Clone)]
enum Net {
    Mlp(Vec<Mlp>),
    Transformer(Vec<Classifier>),
}

/// Attention over layers, sum, perceptrons.
#[derive(Debug, Clone)]
struct Classifier {
    embed: [(Linear, BatchNorm); 2],
    /// `[width, places]`.
    positions: Mat,
    encoders: Vec<Encoder>,
    head: Vec<Mlp>,
}

impl Published {
    /// Name of its file in the authors' folder.
    #[must_use]
    pub fn file_name(family: Family, ensemble: Ensemble) -> String {
        format!("{ensemble}4{family}.ckpt")
    }

    /// Reads one of the authors' checkpoints out of their folder.
    ///
    /// # Errors
    /// The file can't be read, or is not that ensemble.
    pub fn read(folder: &Path, family: Family, ensemble: Ensemble) -> Result<Self, Error> {
        let path = folder.join(Self::file_name(family, ensemble));
        let place = path.display().to_string();
        let bytes = carma_files::read(&path, carma_files::MOST)?;
        let tensors = super::checkpoint::read(&bytes).map_err(|e| Error::bad(&place, e.to_string()))?;
        Self::new(family, ensemble, &tensors).map_err(|e| Error::bad(place, e.to_string()))
    }

    /// An ensemble from its tensors.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(family: Family, ensemble: Ensemble, tensors: &Tensors) -> Result<Self, Error> {
        let net = match ensemble {
            Ensemble::Mlp => Net::Mlp(mlps(tensors, "", features(family))?),
            Ensemble::Transformer => {
                Net::Transformer((0..2).map(|i| classifier(tensors, i, family)).collect::<Result<_, _>>()?)
            }
        };
        Ok(Self { family, net })
    }

    /// Class of a task, from 0.
    #[must_use]
    pub fn class(&self, model: &ModelLayers, task: &ModelTask) -> usize {
        let logits = match &self.net {
            Net::Mlp(mlps) => ensemble(mlps, &column(&whole(self.family, model, task))),
            Net::Transformer(two) => {
                let tokens = tokens(self.family, model, task);
                let extras = extras(self.family, model, task);
                let mut sum = two[0].logits(&tokens, &extras);
                sum.add(&two[1].logits(&tokens, &extras));
                sum
            }
        };
        (0..logits.rows).fold(0, |best, k| if logits.at(k, 0) > logits.at(best, 0) { k } else { best })
    }

    /// Lower and upper edge of a class, MiB, as its authors serve it.
    #[must_use]
    pub fn edges(&self, class: usize) -> (u64, u64) {
        edges(self.family, class)
    }

    /// How many classes it tells apart.
    #[must_use]
    pub const fn classes(&self) -> usize {
        match self.family {
            Family::Mlp => 5,
            Family::Cnn | Family::Transformer => 6,
        }
    }

    /// Its answer: the upper edge of the class, which is what the authors' manager reserves.
    #[must_use]
    pub fn estimate(&self, model: &ModelLayers, task: &ModelTask) -> Estimate {
        let class = self.class(model, task);
        let (low, high) = self.edges(class);
        let ensemble = match self.net {
            Net::Mlp(_) => Ensemble::Mlp,
            Net::Transformer(_) => Ensemble::Transformer,
        };
        let mut reasons = vec![format!(
            "class {class} of the published {ensemble} ensemble: {low} to {high} MiB, with the context of its campaign (1429 MiB)"
        )];
        if high >= edges(self.family, usize::MAX).1 {
            reasons.push("this is its last class: the task may need more than its upper edge".to_owned());
        }
        Estimate {
            need_mib: MiB(low),
            use_mib: MiB(high),
            upper_mib: MiB(high),
            tier: Tier::Formula,
            source: format!("gpumemnet/published/{ensemble}"),
            family: self.family.to_string(),
            parts: None,
            elastic: false,
            reasons,
        }
    }
}

/// Edges of a class, MiB: 1,000 wide from 1,000 for MLPs, 8,000 wide from 0 for the others.
pub(crate) fn edges(family: Family, class: usize) -> (u64, u64) {
    let (start, width, last) = match family {
        Family::Mlp => (1000, 1000, 4),
        Family::Cnn | Family::Transformer => (0, 8000, 5),
    };
    let low = start + width * class.min(last) as u64;
    (low, low + width)
}

/// Number of features of the MLP ensembles.
const fn features(family: Family) -> usize {
    match family {
        Family::Mlp => 8,
        Family::Cnn => 10,
        Family::Transformer => 9,
    }
}

/// Features of a token and of the extras, and places for tokens.
const fn sizes(family: Family) -> (usize, usize, usize) {
    match family {
        Family::Mlp => (4, 4, 46),
        Family::Cnn => (4, 9, 119),
        Family::Transformer => (6, 9, 314),
    }
}

fn column(features: &[f32]) -> Mat {
    Mat { rows: features.len(), cols: 1, data: features.to_vec() }
}

/// Mean of the members' outputs.
fn ensemble(members: &[Mlp], x: &Mat) -> Mat {
    let mut sum = Mat::default();
    for mlp in members {
        let y = mlp.infer(x);
        if sum.rows == 0 {
            sum = y;
        } else {
            sum.add(&y);
        }
    }
    sum.data.iter_mut().for_each(|v| *v /= members.len() as f32);
    sum
}

impl Classifier {
    fn logits(&self, tokens: &[Vec<f32>], extras: &[f32]) -> Mat {
        let places = self.positions.cols;
        let rows = self.embed[0].0.inp;
        let mut x = Mat::zeros(rows, places);
        for (at, token) in tokens.iter().take(places).enumerate() {
            for (r, v) in token.iter().enumerate() {
                x.data[r * places + at] = *v;
            }
        }
        for (linear, norm) in &self.embed {
            x = linear.forward(&x);
            // Normalised place by place: each place has statistics of its own.
            for r in 0..x.rows {
                for (c, v) in x.row_mut(r).iter_mut().enumerate() {
                    *v = (*v - norm.mean[c]) / (norm.var[c] + EPS).sqrt() * norm.scale.value[c]
                        + norm.shift.value[c];
                }
            }
            relu(&mut x);
        }
        x.add(&self.positions);
        // Their attention runs over the batch; for one task, each place sees itself alone.
        let alone = Segments { ranges: (0..places).map(|c| c..c + 1).collect(), count: vec![1.0; places] };
        for encoder in &self.encoders {
            x = encoder.forward(x, &alone).0;
        }
        let mut pooled: Vec<f32> = (0..x.rows).map(|r| x.row(r).iter().sum()).collect();
        pooled.extend_from_slice(extras);
        ensemble(&self.head, &column(&pooled))
    }
}

fn shaped<'a>(tensors: &'a Tensors, name: &str, shape: &[usize]) -> Result<&'a Tensor, Error> {
    let tensor = tensors.get(name)?;
    if tensor.shape != shape {
        return Err(Error::bad(name, format!("shape {:?}; expected {shape:?}", tensor.shape)));
    }
    Ok(tensor)
}

fn vector(tensors: &Tensors, name: &str, len: usize) -> Result<Vec<f32>, Error> {
    Ok(shaped(tensors, name, &[len])?.data.clone())
}

/// A linear layer of `inp` features; its outputs as the tensor says.
fn linear(tensors: &Tensors, weight: &str, bias: &str, inp: usize) -> Result<Linear, Error> {
    let found = tensors.get(weight)?;
    let out = match found.shape.as_slice() {
        [out, i] if *i == inp => *out,
        other => return Err(Error::bad(weight, format!("shape {other:?}; expected [_, {inp}]"))),
    };
    let bias = vector(tensors, bias, out)?;
    Ok(Linear { inp, out, weight: Weights::new(found.data.clone()), bias: Weights::new(bias) })
}

fn named(tensors: &Tensors, name: &str, inp: usize) -> Result<Linear, Error> {
    linear(tensors, &format!("{name}.weight"), &format!("{name}.bias"), inp)
}

fn batch_norm(tensors: &Tensors, name: &str, len: usize) -> Result<BatchNorm, Error> {
    let part = |what: &str| vector(tensors, &format!("{name}.{what}"), len);
    Ok(BatchNorm {
        scale: Weights::new(part("weight")?),
        shift: Weights::new(part("bias")?),
        mean: part("running_mean")?,
        var: part("running_var")?,
    })
}

fn layer_norm(tensors: &Tensors, name: &str, len: usize) -> Result<LayerNorm, Error> {
    Ok(LayerNorm {
        scale: Weights::new(vector(tensors, &format!("{name}.weight"), len)?),
        shift: Weights::new(vector(tensors, &format!("{name}.bias"), len)?),
    })
}

/// All perceptrons below a name: `models.3.model.6.weight` is the third linear layer of the fourth.
fn mlps(tensors: &Tensors, under: &str, inp: usize) -> Result<Vec<Mlp>, Error> {
    let mut members = Vec::new();
    while tensors.has(&format!("{under}models.{}.model.0.weight", members.len())) {
        let root = format!("{under}models.{}.model", members.len());
        let (mut hidden, mut at, mut width) = (Vec::new(), 0, inp);
        while tensors.has(&format!("{root}.{}.weight", at + 3)) {
            let linear = named(tensors, &format!("{root}.{at}"), width)?;
            width = linear.out;
            let norm = batch_norm(tensors, &format!("{root}.{}", at + 1), width)?;
            hidden.push(carma_nn::Hidden { linear, norm });
            at += 3;
        }
        let last = named(tensors, &format!("{root}.{at}"), width)?;
        if members.first().is_some_and(|m: &Mlp| m.last.out != last.out) {
            return Err(Error::bad(root, "its number of classes differs from the others'"));
        }
        members.push(Mlp { hidden, last });
    }
    if members.is_empty() {
        return Err(Error::bad(format!("{under}models.0"), "no such ensemble in the checkpoint"));
    }
    Ok(members)
}

fn classifier(tensors: &Tensors, number: usize, family: Family) -> Result<Classifier, Error> {
    let (token, extra, places) = sizes(family);
    let root = format!("models.{number}");
    let first = named(tensors, &format!("{root}.embedding.0"), token)?;
    let width = first.out;
    let second = named(tensors, &format!("{root}.embedding.3"), width)?;
    let norms = [1, 4].map(|i| batch_norm(tensors, &format!("{root}.embedding.{i}"), places));
    let [norm1, norm2] = norms;
    let table = shaped(tensors, &format!("{root}.positional_encoding"), &[1, places, width])?;
    let mut positions = Mat::zeros(width, places);
    for (at, v) in table.data.iter().enumerate() {
        positions.data[at % width * places + at / width] = *v;
    }
    let mut encoders = Vec::new();
    while tensors.has(&format!("{root}.transformer_encoder.layers.{}.norm1.weight", encoders.len())) {
        let layer = format!("{root}.transformer_encoder.layers.{}", encoders.len());
        let attention = format!("{layer}.self_attn");
        let qkv = linear(
            tensors,
            &format!("{attention}.in_proj_weight"),
            &format!("{attention}.in_proj_bias"),
            width,
        )?;
        let out = named(tensors, &format!("{attention}.out_proj"), width)?;
        let widen = named(tensors, &format!("{layer}.linear1"), width)?;
        let narrow = named(tensors, &format!("{layer}.linear2"), widen.out)?;
        if qkv.out != 3 * width || out.out != width || narrow.out != width {
            return Err(Error::bad(layer, format!("its layers do not fit a width of {width}")));
        }
        encoders.push(Encoder {
            attention: carma_nn::Attention { heads: 1, qkv, out },
            first: layer_norm(tensors, &format!("{layer}.norm1"), width)?,
            widen,
            narrow,
            second: layer_norm(tensors, &format!("{layer}.norm2"), width)?,
        });
    }
    Ok(Classifier {
        embed: [(first, norm1?), (second, norm2?)],
        positions,
        encoders,
        head: mlps(tensors, &format!("{root}.fc_out."), width + extra)?,
    })
}
