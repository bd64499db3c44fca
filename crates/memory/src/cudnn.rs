//! What cuDNN takes beside its tensors while a convolution runs.
//!
//! Kernels for tensor cores want channels last, so that most convolutions copy input, weight and output; which do, and
//! which take several times as much, is decided by heuristics that are not published. Trees over the geometry say it,
//! grown on 31,000 single convolutions that were measured on an H200 (`bench/h200/conv_workspaces.py`, `conv_fit.py`).

use std::sync::OnceLock;

/// The trees, written by `bench/h200/conv_fit.py`.
const TREES: &str = include_str!("../weights/h200-cudnn-workspaces.txt");

/// What is calculated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// The output.
    Forward,
    /// The gradient of the input.
    Input,
    /// The gradient of the weight.
    Weight,
}

/// A convolution as a trace has it: sizes of tensors from the batch on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convolution {
    /// What is calculated.
    pub pass: Pass,
    /// Bytes of a number.
    pub width: u64,
    /// Whether the tensors have their channels last.
    pub channels_last: bool,
    /// Whether it is transposed.
    pub transposed: bool,
    /// Groups of channels.
    pub groups: u64,
    /// The largest stride.
    pub stride: u64,
    /// The largest dilation.
    pub dilation: u64,
    /// Batch, channels, sides.
    pub input: Vec<u64>,
    /// Two numbers of channels, the kernel's sides.
    pub weight: Vec<u64>,
    /// Batch, channels, sides.
    pub output: Vec<u64>,
}

/// Most dimensions of a tensor: three sides.
const MOST_DIMENSIONS: usize = 5;
/// Sizes whose product no GPU holds are refused when they are read.
const MOST_ELEMENTS: u64 = 1 << 46;

impl Convolution {
    /// Reads `PASS WIDTH LAST TRANSPOSED GROUPS STRIDE DILATION INPUT WEIGHT OUTPUT`, as `f 4 0 0 1 1 1 8,3,32,32 16,3,3,3
    /// 8,16,32,32`; PASS is `f`, `d` (gradient of the input) or `w`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let pass = match words.next()? {
            "f" => Pass::Forward,
            "d" => Pass::Input,
            "w" => Pass::Weight,
            _ => return None,
        };
        let mut number = || words.next()?.parse::<u32>().ok().map(u64::from);
        let (width, last, transposed) = (number()?, number()?, number()?);
        let (groups, stride, dilation) = (number()?, number()?, number()?);
        let mut sizes = || -> Option<Vec<u64>> {
            let sizes: Vec<u64> = words.next()?.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
            let elements = sizes.iter().try_fold(1_u64, |all, n| all.checked_mul(*n))?;
            ((3..=MOST_DIMENSIONS).contains(&sizes.len()) && (1..=MOST_ELEMENTS).contains(&elements))
                .then_some(sizes)
        };
        let (input, weight, output) = (sizes()?, sizes()?, sizes()?);
        let fits = input.len() == weight.len() && input.len() == output.len() && words.next().is_none();
        (fits && (1..=16).contains(&width) && groups > 0 && last < 2 && transposed < 2).then_some(Self {
            pass,
            width,
            channels_last: last == 1,
            transposed: transposed == 1,
            groups,
            stride,
            dilation,
            input,
            weight,
            output,
        })
    }

    /// Input, weight and output, bytes.
    #[must_use]
    pub fn tensors(&self) -> u64 {
        [&self.input, &self.weight, &self.output]
            .map(|sizes| sizes.iter().product::<u64>())
            .iter()
            .sum::<u64>()
            * self.width
    }

    /// What is expected to be taken while it runs, bytes.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        let features = self.features();
        let share = trees().iter().find(|tree| tree.is_of(self)).map_or(0.0, |tree| tree.ask(&features));
        (self.tensors() as f64 * share) as u64
    }

    /// In the order of [`FEATURES`].
    fn features(&self) -> [f64; FEATURES.len()] {
        let even = |n: u64| (1_u64 << n.trailing_zeros().min(4)) as f64;
        let most = |sizes: &[u64]| sizes.iter().copied().max().unwrap_or(1) as f64;
        let elements = |sizes: &[u64]| sizes.iter().product::<u64>() as f64;
        let (sides, kernel) = (&self.input[2..], &self.weight[2..]);
        let (channels, outputs) = (self.input[1], self.output[1]);
        let (x, y, w) = (elements(&self.input), elements(&self.output), elements(&self.weight));
        [
            sides.len() as f64,
            f64::from(u8::from(self.transposed)),
            self.input[0] as f64,
            (channels / self.groups) as f64,
            (outputs / self.groups) as f64,
            even(channels),
            even(outputs),
            most(kernel),
            kernel.iter().copied().min().unwrap_or(1) as f64,
            self.stride as f64,
            self.dilation as f64,
            self.groups as f64,
            most(sides),
            elements(sides),
            y / x,
            w / (x + y),
        ]
    }
}

/// What splits may look at; `bench/h200/conv_fit.py` has the same.
const FEATURES: [&str; 16] = [
    "dims",
    "transposed",
    "n",
    "c",
    "k",
    "c_even",
    "k_even",
    "kernel_most",
    "kernel_least",
    "stride",
    "dilation",
    "groups",
    "side",
    "area",
    "grows",
    "weighs",
];

/// A node; what is not above the number follows at once, the rest from `above` on.
#[derive(Debug)]
enum Node {
    Split { feature: usize, number: f64, above: usize },
    Share(f64),
}

#[derive(Debug)]
struct Tree {
    narrow: bool,
    channels_last: bool,
    pass: Pass,
    nodes: Vec<Node>,
}

impl Tree {
    fn is_of(&self, convolution: &Convolution) -> bool {
        self.narrow == (convolution.width < 4)
            && self.channels_last == convolution.channels_last
            && self.pass == convolution.pass
    }

    fn ask(&self, features: &[f64; FEATURES.len()]) -> f64 {
        let mut at = 0;
        loop {
            match self.nodes.get(at) {
                Some(Node::Split { feature, number, above }) => {
                    at = if features[*feature] <= *number { at + 1 } else { *above };
                }
                Some(Node::Share(share)) => return *share,
                None => return 0.0,
            }
        }
    }
}

fn trees() -> &'static [Tree] {
    static READ: OnceLock<Vec<Tree>> = OnceLock::new();
    READ.get_or_init(|| read_trees(TREES).unwrap_or_default())
}

fn read_trees(text: &str) -> Option<Vec<Tree>> {
    let mut trees: Vec<Tree> = Vec::new();
    // Splits whose rest has not come yet.
    let mut open: Vec<usize> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["tree", width, layout, pass] = *words {
            let pass = match pass {
                "forward" => Pass::Forward,
                "dgrad" => Pass::Input,
                "wgrad" => Pass::Weight,
                _ => return None,
            };
            trees.push(Tree {
                narrow: width == "2",
                channels_last: layout == "last",
                pass,
                nodes: Vec::new(),
            });
            continue;
        }
        let [name, number] = *words else { return None };
        let (nodes, number) = (&mut trees.last_mut()?.nodes, number.parse().ok()?);
        if name != "=" {
            open.push(nodes.len());
            nodes.push(Node::Split { feature: FEATURES.iter().position(|f| *f == name)?, number, above: 0 });
            continue;
        }
        nodes.push(Node::Share(number));
        let next = nodes.len();
        // A leaf ends all splits whose rest it was, and the first half of one before them.
        while let Some(split) = open.pop() {
            if let Node::Split { above, .. } = &mut nodes[split]
                && *above == 0
            {
                *above = next;
                open.push(split);
                break;
            }
        }
    }
    Some(trees)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn trees_that_are_shipped() {
        let trees = read_trees(TREES).unwrap();
        assert_eq!(trees.len(), 12);
        for tree in &trees {
            for (at, node) in tree.nodes.iter().enumerate() {
                if let Node::Split { above, .. } = node {
                    assert!(*above > at + 1 && *above < tree.nodes.len());
                }
            }
        }
    }

    /// As measured: a convolution of 3 by 3 in 32 bits copies its tensors, one of 1 by 1 and one for each channel do not.
    #[test]
    fn workspaces() {
        let of = |text: &str| {
            let convolution = Convolution::read(text).unwrap();
            convolution.workspace() as f64 / convolution.tensors() as f64
        };
        assert!((of("f 4 0 0 1 1 1 32,64,56,56 64,64,3,3 32,64,56,56") - 1.0).abs() < 0.1);
        assert!(of("f 4 0 0 1 1 1 32,64,56,56 256,64,1,1 32,256,56,56") < 0.01);
        assert!(of("d 4 0 0 96 1 1 32,96,56,56 96,1,3,3 32,96,56,56") < 0.01);
    }

    #[test]
    fn what_is_no_convolution() {
        for text in [
            "",
            "f",
            "x 4 0 0 1 1 1 8,3,32,32 16,3,3,3 8,16,32,32",
            "f 4 0 0 0 1 1 8,3,32,32 16,3,3,3 8,16,32,32",
            "f 4 0 2 1 1 1 8,3,32,32 16,3,3,3 8,16,32,32",
            "f 4 0 0 1 1 1 8,3 16,3 8,16",
            "f 4 0 0 1 1 1 8,3,32,32 16,3,3,3 8,16,32",
            "f 4 0 0 1 1 1 8,0,32,32 16,3,3,3 8,16,32,32",
            "f 4 0 0 1 1 1 8,3,32,32 16,3,3,3 8,16,32,32 1",
            "f 4 0 0 1 1 1 8,18446744073709551615,32,32 16,3,3,3 8,16,32,32",
        ] {
            assert_eq!(Convolution::read(text), None, "{text}");
        }
    }
}
