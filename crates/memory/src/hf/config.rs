//! A transformer's dimensions and habits, under one set of names for all families.

use crate::{Attention, Precision};

/// A template of operators: models of one family run the same ones, in other sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA: encoder, normalisation after the sum.
    Bert,
    /// DistilBERT: BERT without token types and without dropout after the attention.
    DistilBert,
    /// ALBERT: one layer's weights for all layers.
    Albert,
    /// DeBERTa v1, v2, v3: attention with disentangled positions, always written out.
    Deberta,
    /// XLNet: two streams of positions, attention always written out.
    XlNet,
    /// GPT-2: learned positions, one matrix for query, key and value.
    Gpt2,
    /// GPT-Neo: attention in 32 bits without bias.
    GptNeo,
    /// GPT-J: rotary positions, attention and MLP beside each other.
    GptJ,
    /// OPT: learned positions, ReLU, scaled query.
    Opt,
    /// BLOOM: ALiBi, attention always written out.
    Bloom,
    /// GPT-NeoX, Pythia: rotary positions on part of a head, attention and MLP beside each other.
    NeoX,
    /// Phi-1, Phi-2: as GPT-NeoX with three matrices and a single normalisation.
    Phi,
    /// Llama, Mistral, Qwen2, Qwen3, Phi-3 and whatever has RMS norm, rotary positions, gated MLP.
    Llama,
    /// Gemma 1, 2, 3: as Llama; scaled embedding, its own RMS norm.
    Gemma,
    /// T5, mT5, Flan-T5, LongT5-like: encoder and decoder with a bias by relative position.
    T5,
    /// BART, mBART, Marian, Pegasus: encoder and decoder.
    Bart,
    /// Whisper: BART's layers over two convolutions.
    Whisper,
    /// ViT, DeiT, DINOv2, CLIP's and SigLIP's image towers.
    Vit,
    /// CLIP's and SigLIP's text towers.
    ClipText,
    /// wav2vec 2.0, HuBERT, WavLM: an encoder over convolutions of a waveform.
    Wav2Vec,
    /// Something else: an encoder or decoder with the usual parts.
    Unknown,
}

impl Family {
    /// For people, and the graph's family.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::DistilBert => "distilbert",
            Self::Albert => "albert",
            Self::Deberta => "deberta",
            Self::XlNet => "xlnet",
            Self::Gpt2 => "gpt2",
            Self::GptNeo => "gpt-neo",
            Self::GptJ => "gpt-j",
            Self::Opt => "opt",
            Self::Bloom => "bloom",
            Self::NeoX => "gpt-neox",
            Self::Phi => "phi",
            Self::Llama => "llama",
            Self::Gemma => "gemma",
            Self::T5 => "t5",
            Self::Bart => "bart",
            Self::Whisper => "whisper",
            Self::Vit => "vit",
            Self::ClipText => "clip-text",
            Self::Wav2Vec => "wav2vec",
            Self::Unknown => "unknown",
        }
    }

    /// Whether each token sees only those before it.
    #[must_use]
    pub const fn is_decoder(self) -> bool {
        matches!(
            self,
            Self::Gpt2
                | Self::GptNeo
                | Self::GptJ
                | Self::Opt
                | Self::Bloom
                | Self::NeoX
                | Self::Phi
                | Self::Llama
                | Self::Gemma
        )
    }

    /// Whether it has an encoder and a decoder.
    #[must_use]
    pub const fn is_seq2seq(self) -> bool {
        matches!(self, Self::T5 | Self::Bart | Self::Whisper)
    }
}

/// What stands on top of the layers, as `architectures` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// The hidden states; a loss over them (mean) is assumed for training.
    None,
    /// A distribution over the vocabulary for each token, labels shifted.
    CausalLm,
    /// A distribution over the vocabulary for each token.
    MaskedLm,
    /// One answer a sample.
    SequenceClassification,
    /// One answer a token.
    TokenClassification,
    /// A start and an end.
    QuestionAnswering,
}

/// Elementwise function of the MLP, by how it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// One kernel that keeps its output: ReLU, Tanh.
    KeepsOutput,
    /// One kernel that keeps its input: GELU, SiLU.
    KeepsInput,
    /// `gelu_new`, `gelu_fast`: written out in eight elementwise operators.
    GeluNew,
    /// `quick_gelu`: `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// BLOOM's own function: keeps its input, with temporaries.
    Bloom,
    /// `relu2`: the square of ReLU.
    ReluSquared,
}

/// How the weights of normalisations are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `nn.LayerNorm`.
    Layer,
    /// RMS norm written out in elementwise operators.
    Rms,
}

/// Where dropout has a probability above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropout {
    /// After the embeddings.
    pub embedding: bool,
    /// After attention and MLP.
    pub hidden: bool,
    /// On the attention's probabilities.
    pub attention: bool,
    /// Inside the MLP.
    pub activation: bool,
    /// Before the classifier.
    pub classifier: bool,
}

/// An image and its patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Height and width, pixels.
    pub size: u64,
    /// Height and width of a patch, pixels.
    pub patch: u64,
    /// Number of colours.
    pub channels: u64,
    /// Tokens in front of the patches: class, distillation, registers.
    pub prefix: u64,
}

/// Convolutions that make states of a waveform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waveform {
    /// Channels, kernel and stride of each.
    pub layers: Vec<[u64; 3]>,
    /// Whether they have a bias.
    pub bias: bool,
    /// A norm after each over its channels; else a group norm after the first.
    pub layer_norms: bool,
    /// Kernel and groups of the convolution that stands for positions.
    pub positions: [u64; 2],
}

/// A mixture of experts in place of the MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u64,
    /// Experts that a token goes to.
    pub per_token: u64,
    /// Width of an expert.
    pub intermediate: u64,
    /// Width of the expert that every token goes to; 0: none.
    pub shared: u64,
    /// Layers at the front with an ordinary MLP.
    pub dense_layers: u64,
}

/// A transformer's dimensions and habits.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Template of operators.
    pub family: Family,
    /// `model_type` as it stands in the file.
    pub model_type: String,
    /// What stands on top.
    pub head: Head,
    /// Width of the hidden states.
    pub hidden: u64,
    /// Layers (of the encoder, where there is one).
    pub layers: u64,
    /// Heads of the query.
    pub heads: u64,
    /// Heads of key and value.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Inner width of the MLP.
    pub intermediate: u64,
    /// Tokens of the vocabulary.
    pub vocab: u64,
    /// Longest sequence (rows of the table of positions, where it is learned).
    pub positions: u64,
    /// Kinds of token (segments); 0: none.
    pub token_types: u64,
    /// Width of the embedding where it is not that of the hidden states (ELECTRA, ALBERT, OPT).
    pub embedding: u64,
    /// Classes of a classifier.
    pub labels: u64,
    /// Layers of the decoder of an encoder-decoder.
    pub decoder_layers: u64,
    /// Heads of that decoder.
    pub decoder_heads: u64,
    /// Inner width of that decoder's MLP.
    pub decoder_intermediate: u64,
    /// Rows of the bias by relative position (T5), or buckets (DeBERTa).
    pub buckets: u64,
    /// Positions are projected by the matrices of the content (DeBERTa's `share_att_key`).
    pub shared_positions: bool,
    /// There is a table of positions beside those of the attention (DeBERTa's `position_biased_input`).
    pub position_table: bool,
    /// Kind of normalisation.
    pub norm: NormKind,
    /// Function of the MLP.
    pub act: Act,
    /// Two matrices into the MLP, one through the function, multiplied.
    pub gated: bool,
    /// Both in one matrix (Phi-3), as query, key and value.
    pub fused: bool,
    /// Numbers of a head that rotary positions turn; 0: no rotary positions.
    pub rotary: u64,
    /// Query and key are normalised per head (Qwen3, Gemma 3), or over all heads (OLMo 2).
    pub qk_norm: bool,
    /// A norm also after attention and after the MLP (Gemma 2, 3).
    pub post_norms: bool,
    /// Attention and MLP beside each other.
    pub parallel: bool,
    /// Bias in query, key and value.
    pub qkv_bias: bool,
    /// Bias in the attention's output.
    pub out_bias: bool,
    /// Bias in the MLP.
    pub mlp_bias: bool,
    /// Normalisation before attention and MLP; else after the sum.
    pub pre_norm: bool,
    /// Where dropout is applied, and how much.
    pub dropout: Dropout,
    /// The table of tokens is also the output matrix.
    pub tied: bool,
    /// Keys and values are kept for generation, in training as well (`use_cache`).
    pub cache: bool,
    /// Logits are squashed by `tanh` (Gemma 2).
    pub softcap: bool,
    /// Scores of the attention are squashed too, for which there is no fused kernel (Gemma 2).
    pub scores_softcap: bool,
    /// Length of the sliding window of attention; shorter than the sequence it makes a mask.
    pub window: Option<u64>,
    /// `_attn_implementation` in the file.
    pub attention: Option<Attention>,
    /// `dtype` of the file: what it is loaded in by default.
    pub dtype: Option<Precision>,
    /// Images in place of tokens.
    pub image: Option<Image>,
    /// Mixture of experts.
    pub experts: Option<Experts>,
    /// Frequencies of a spectrogram (Whisper).
    pub mel_bins: u64,
    /// A waveform in place of tokens.
    pub waveform: Option<Waveform>,
    /// Beside the image tower, one of text (CLIP, SigLIP): both run for each sample.
    pub text: Option<Box<Self>>,
    /// What was not understood.
    pub doubts: Vec<String>,
}

impl Config {
    /// What models of a family do unless their file says otherwise; dimensions are those of the family's
    /// first model.
    #[must_use]
    pub fn of(family: Family) -> Self {
        let mut c = Self {
            family,
            model_type: family.as_str().to_owned(),
            head: Head::None,
            hidden: 768,
            layers: 12,
            heads: 12,
            kv_heads: 12,
            head_dim: 64,
            intermediate: 3072,
            vocab: 0,
            positions: 512,
            token_types: 0,
            embedding: 768,
            labels: 2,
            decoder_layers: 0,
            decoder_heads: 0,
            decoder_intermediate: 0,
            buckets: 0,
            shared_positions: false,
            position_table: true,
            norm: NormKind::Layer,
            act: Act::KeepsInput,
            gated: false,
            fused: false,
            rotary: 0,
            qk_norm: false,
            post_norms: false,
            parallel: false,
            qkv_bias: true,
            out_bias: true,
            mlp_bias: true,
            pre_norm: true,
            dropout: Dropout::default(),
            tied: true,
            cache: family.is_decoder() || family.is_seq2seq(),
            softcap: false,
            scores_softcap: false,
            window: None,
            attention: None,
            dtype: None,
            image: None,
            experts: None,
            mel_bins: 0,
            waveform: None,
            text: None,
            doubts: Vec::new(),
        };
        let everywhere =
            Dropout { embedding: true, hidden: true, attention: true, activation: false, classifier: true };
        match family {
            Family::Bert | Family::Deberta => {
                (c.vocab, c.token_types, c.pre_norm, c.dropout) = (30522, 2, false, everywhere);
            }
            Family::DistilBert => {
                (c.vocab, c.layers, c.pre_norm, c.dropout) = (30522, 6, false, everywhere);
            }
            Family::Albert => {
                (c.vocab, c.embedding, c.token_types, c.pre_norm) = (30000, 128, 2, false);
                c.act = Act::GeluNew;
                c.dropout.classifier = true;
            }
            Family::XlNet => {
                (c.vocab, c.pre_norm, c.out_bias, c.qkv_bias, c.positions) = (32000, false, false, false, 0);
                c.dropout = Dropout { activation: true, ..everywhere };
            }
            Family::Gpt2 => {
                (c.vocab, c.positions, c.act, c.dropout) = (50257, 1024, Act::GeluNew, everywhere);
            }
            Family::GptNeo => {
                (c.vocab, c.positions, c.act, c.qkv_bias) = (50257, 2048, Act::GeluNew, false);
            }
            Family::GptJ => {
                (c.vocab, c.positions, c.act, c.rotary, c.parallel) = (50400, 2048, Act::GeluNew, 64, true);
                (c.qkv_bias, c.out_bias, c.tied) = (false, false, false);
            }
            Family::Opt => {
                (c.vocab, c.positions, c.act) = (50272, 2048, Act::KeepsOutput);
                c.dropout.hidden = true;
            }
            Family::Bloom => {
                (c.vocab, c.positions, c.act) = (250_880, 2048, Act::Bloom);
            }
            Family::NeoX => {
                (c.vocab, c.positions, c.rotary, c.parallel, c.tied) = (50432, 2048, 16, true, false);
            }
            Family::Phi => {
                (c.vocab, c.positions, c.rotary, c.parallel, c.tied) = (51200, 2048, 32, true, false);
                c.act = Act::GeluNew;
            }
            Family::Llama | Family::Gemma => {
                (c.vocab, c.positions, c.norm, c.gated, c.rotary) = (32000, 2048, NormKind::Rms, true, 64);
                (c.qkv_bias, c.out_bias, c.mlp_bias) = (false, false, false);
                c.tied = family == Family::Gemma;
            }
            Family::T5 => {
                (c.vocab, c.positions, c.norm, c.buckets) = (32128, 512, NormKind::Rms, 32);
                (c.hidden, c.embedding, c.layers, c.heads, c.kv_heads) = (512, 512, 6, 8, 8);
                (c.intermediate, c.decoder_layers, c.decoder_heads) = (2048, 6, 8);
                c.decoder_intermediate = 2048;
                (c.qkv_bias, c.out_bias, c.mlp_bias, c.act) = (false, false, false, Act::KeepsOutput);
                c.dropout = Dropout { activation: true, ..everywhere };
            }
            Family::Bart | Family::Whisper => {
                (c.vocab, c.positions, c.pre_norm) = (50265, 1024, family == Family::Whisper);
                (c.decoder_layers, c.decoder_heads, c.decoder_intermediate) = (12, 12, 3072);
                c.dropout = Dropout { embedding: true, hidden: true, ..Dropout::default() };
                if family == Family::Whisper {
                    (c.vocab, c.positions, c.mel_bins, c.dropout) = (51865, 1500, 80, Dropout::default());
                }
            }
            Family::Vit => {
                c.positions = 0;
                c.image = Some(Image { size: 224, patch: 16, channels: 3, prefix: 1 });
                c.head = Head::SequenceClassification;
            }
            Family::ClipText => {
                (c.vocab, c.positions, c.act) = (49408, 77, Act::QuickGelu);
                (c.hidden, c.embedding, c.heads, c.kv_heads, c.intermediate) = (512, 512, 8, 8, 2048);
            }
            Family::Wav2Vec => {
                (c.vocab, c.positions, c.pre_norm) = (32, 0, false);
                c.dropout = Dropout { activation: true, ..everywhere };
                let layers = [[512, 10, 5]].into_iter().chain([[512, 3, 2]; 4]).chain([[512, 2, 2]; 2]);
                c.waveform = Some(Waveform {
                    layers: layers.collect(),
                    bias: false,
                    layer_norms: false,
                    positions: [128, 16],
                });
            }
            Family::Unknown => c.tied = false,
        }
        c
    }
}
