//! What single models do differently from their family, by `model_type`.

use super::fields::Fields;
use super::{Act, Config, Family, Head, NormKind};
use crate::Error;

/// Sets what the file says in words of its own, or what its model type implies.
pub(super) fn of_model(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    match c.family {
        Family::Llama | Family::Gemma => llama(f, c),
        Family::NeoX => {
            c.parallel = f.boolean(&["use_parallel_residual"])?.unwrap_or(true);
            c.qkv_bias = f.boolean(&["attention_bias"])?.unwrap_or(true);
            c.out_bias = c.qkv_bias;
            rotary(f, c, 0.25)
        }
        Family::Phi => {
            c.qk_norm = f.boolean(&["qk_layernorm"])?.unwrap_or(false);
            rotary(f, c, 0.5)
        }
        Family::GptJ => {
            c.rotary = f.number(&["rotary_dim"], 0, c.head_dim)?.unwrap_or(c.head_dim);
            Ok(())
        }
        Family::Opt => {
            c.pre_norm = f.boolean(&["do_layer_norm_before"])?.unwrap_or(true);
            c.qkv_bias = f.boolean(&["enable_bias"])?.unwrap_or(true);
            (c.out_bias, c.mlp_bias) = (c.qkv_bias, c.qkv_bias);
            Ok(())
        }
        Family::T5 => t5(f, c),
        Family::Vit => vit(f, c),
        Family::Bart => {
            // mBART, Pegasus and their kin normalise first.
            c.pre_norm = matches!(c.model_type.as_str(), "mbart" | "pegasus" | "blenderbot" | "m2m_100");
            Ok(())
        }
        Family::Wav2Vec => wav2vec(f, c),
        Family::ClipText if c.model_type.starts_with("siglip") => {
            (c.vocab, c.positions) = (
                f.number(&["vocab_size"], 1, 1 << 28)?.unwrap_or(32000),
                f.number(&["max_position_embeddings"], 1, 1 << 24)?.unwrap_or(64),
            );
            Ok(())
        }
        Family::Whisper => {
            c.positions = f.number(&["max_source_positions"], 1, 1 << 24)?.unwrap_or(1500);
            Ok(())
        }
        Family::Deberta => {
            c.shared_positions = f.boolean(&["share_att_key"])?.unwrap_or(false);
            c.position_table = f.boolean(&["position_biased_input"])?.unwrap_or(true);
            Ok(())
        }
        Family::Unknown => unknown(f, c),
        _ => Ok(()),
    }
}

/// Its convolutions, each with channels, kernel and stride in lists of their own.
fn wav2vec(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    c.pre_norm = f.boolean(&["do_stable_layer_norm"])?.unwrap_or(false);
    c.dropout.classifier = f.chance(&["final_dropout"])?.unwrap_or(c.dropout.classifier);
    let Some(waveform) = &mut c.waveform else { return Ok(()) };
    let lists = [
        f.numbers("conv_dim", 1, 1 << 16)?,
        f.numbers("conv_kernel", 1, 1 << 16)?,
        f.numbers("conv_stride", 1, 1 << 16)?,
    ];
    if let [Some(channels), Some(kernels), Some(strides)] = &lists {
        if channels.len() != kernels.len() || channels.len() != strides.len() || channels.len() > 64 {
            return Err(Error::bad(
                "config.json, conv_dim",
                "conv_dim, conv_kernel and conv_stride must be lists of the same length, 64 at most",
            ));
        }
        let both = channels.iter().zip(kernels).zip(strides);
        waveform.layers = both.map(|((channels, kernel), stride)| [*channels, *kernel, *stride]).collect();
    }
    waveform.bias = f.boolean(&["conv_bias"])?.unwrap_or(waveform.bias);
    waveform.layer_norms = f.text(&["feat_extract_norm"])? == Some("layer");
    let [kernel, groups] = waveform.positions;
    waveform.positions = [
        f.number(&["num_conv_pos_embeddings"], 1, 1 << 16)?.unwrap_or(kernel),
        f.number(&["num_conv_pos_embedding_groups"], 1, c.hidden)?.unwrap_or(groups),
    ];
    Ok(())
}

/// How many numbers of a head are turned: a share of them, given at the top or beside the base.
fn rotary(f: &Fields<'_>, c: &mut Config, usual: f64) -> Result<(), Error> {
    let mut share = f.float(&["partial_rotary_factor", "rotary_pct", "rope_pct"])?;
    if let Some(inner) = f.object("rope_parameters")? {
        share =
            Fields::new("config.json, rope_parameters", inner).float(&["partial_rotary_factor"])?.or(share);
    }
    let share = share.unwrap_or(usual);
    if !(0.0..=1.0).contains(&share) {
        return Err(Error::bad(
            "config.json, partial_rotary_factor",
            format!("expected a share between 0 and 1, found {share}"),
        ));
    }
    c.rotary = (share * c.head_dim as f64) as u64;
    Ok(())
}

fn llama(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    let attention = f.boolean(&["attention_bias", "use_qkv_bias", "use_bias"])?.unwrap_or(false);
    (c.qkv_bias, c.out_bias) = (attention, attention);
    c.mlp_bias = f.boolean(&["mlp_bias", "use_bias"])?.unwrap_or(false);
    let mut share = 1.0;
    match c.model_type.as_str() {
        "qwen2" | "qwen2_moe" => c.qkv_bias = true,
        "qwen3" | "qwen3_moe" | "olmo2" | "olmo3" | "olmoe" | "gemma3" | "gemma3_text" | "exaone4" => {
            c.qk_norm = true;
        }
        "phi3" => c.fused = true,
        "glm" | "glm4" => {
            (c.fused, c.qkv_bias) = (true, f.boolean(&["attention_bias"])?.unwrap_or(true));
            share = 0.5;
        }
        "stablelm" => {
            c.norm = NormKind::Layer;
            share = 0.25;
        }
        "starcoder2" => {
            (c.norm, c.gated) = (NormKind::Layer, false);
            let bias = f.boolean(&["use_bias"])?.unwrap_or(true);
            (c.qkv_bias, c.out_bias, c.mlp_bias) = (bias, bias, bias);
        }
        "arcee" | "apertus" => c.gated = false,
        "seed_oss" => {
            c.qkv_bias = f.boolean(&["attention_bias"])?.unwrap_or(true);
            c.out_bias = f.boolean(&["attention_out_bias"])?.unwrap_or(false);
        }
        "nemotron" => {
            (c.norm, c.gated) = (NormKind::Layer, false);
            share = 0.5;
        }
        "cohere" | "cohere2" => (c.norm, c.parallel) = (NormKind::Layer, true),
        "olmo" => c.norm = NormKind::Layer,
        "phimoe" => {
            (c.norm, c.qkv_bias, c.out_bias) = (NormKind::Layer, attention, attention);
        }
        _ => {}
    }
    c.post_norms = matches!(c.model_type.as_str(), "gemma2" | "gemma3" | "gemma3_text" | "glm4");
    if c.family == Family::Gemma {
        c.scores_softcap =
            c.model_type == "gemma2" && f.float(&["attn_logit_softcapping"])?.is_none_or(|v| v > 0.0);
        c.softcap = f.float(&["final_logit_softcapping"])?.is_some_and(|v| v > 0.0);
    }
    if c.family == Family::Gemma {
        // Its own function whatever `hidden_act` says.
        c.act = Act::KeepsInput;
    }
    rotary(f, c, share)
}

fn t5(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    if let Some(name) = f.text(&["feed_forward_proj"])? {
        c.gated = name.starts_with("gated-");
        c.act = match name.trim_start_matches("gated-") {
            "relu" => Act::KeepsOutput,
            "gelu" if c.gated => Act::GeluNew,
            "gelu_new" => Act::GeluNew,
            _ => Act::KeepsInput,
        };
    }
    Ok(())
}

fn vit(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    c.qkv_bias = f.boolean(&["qkv_bias"])?.unwrap_or(true);
    if c.model_type.starts_with("dinov2") {
        c.gated = f.boolean(&["use_swiglu_ffn"])?.unwrap_or(false);
        if c.gated {
            c.doubts.push("dinov2 with a gated MLP: its width is rounded by the model's own rule".to_owned());
        }
    }
    c.positions = 0;
    Ok(())
}

fn unknown(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    if f.get(&["rms_norm_eps", "rms_norm_epsilon", "norm_epsilon"]).is_some() {
        c.norm = NormKind::Rms;
    }
    if f.get(&["rope_theta", "rope_parameters", "rope_scaling", "rotary_dim", "rotary_emb_base"]).is_some() {
        rotary(f, c, 1.0)?;
    }
    let gate = ["hidden_act", "activation_function", "hidden_activation"];
    c.gated =
        c.norm == NormKind::Rms || matches!(f.text(&gate)?, Some("silu" | "swiglu" | "swish" | "geglu"));
    let bias = c.norm == NormKind::Layer;
    (c.qkv_bias, c.out_bias, c.mlp_bias) = (bias, bias, bias);
    if c.model_type == "modernbert" {
        // A bias nowhere, one matrix for query, key and value, one for the MLP and its gate.
        (c.gated, c.fused, c.rotary, c.position_table, c.tied) = (true, true, c.head_dim, false, true);
        (c.qkv_bias, c.out_bias, c.mlp_bias) = (false, false, false);
    }
    // An output matrix of its own is the larger case, and what is assumed unless the file says so.
    c.cache = c.head == Head::CausalLm && f.boolean(&["use_cache"])?.unwrap_or(true);
    Ok(())
}
