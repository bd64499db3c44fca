//! Names of linear layers by family, as transformers has them: adapters are aimed at their ends.

use super::Family;

/// Ends of names.
#[derive(Clone, Copy)]
pub(super) struct Names {
    /// Query, key, value; where one matrix makes all three, the query's name is its name.
    pub(super) q: &'static str,
    pub(super) k: &'static str,
    pub(super) v: &'static str,
    pub(super) out: &'static str,
    /// Into the MLP, its gate, and out of it.
    pub(super) up: &'static str,
    pub(super) gate: &'static str,
    pub(super) down: &'static str,
}

/// Names of a family; one with fused matrices has others.
pub(super) const fn of(family: Family, fused: bool) -> Names {
    let (q, k, v, out, up, gate, down) = match family {
        Family::Gpt2 => ("c_attn", "", "", "attn.c_proj", "c_fc", "", "mlp.c_proj"),
        Family::GptNeo => ("q_proj", "k_proj", "v_proj", "out_proj", "c_fc", "", "c_proj"),
        Family::GptJ => ("q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "", "fc_out"),
        Family::Bloom | Family::NeoX => {
            ("query_key_value", "", "", "attention.dense", "dense_h_to_4h", "", "dense_4h_to_h")
        }
        Family::Phi => ("q_proj", "k_proj", "v_proj", "dense", "fc1", "", "fc2"),
        Family::Llama | Family::Gemma | Family::Unknown if fused => {
            ("qkv_proj", "", "", "o_proj", "gate_up_proj", "", "down_proj")
        }
        Family::Llama | Family::Gemma | Family::Unknown => {
            ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj")
        }
        Family::Opt | Family::Bart | Family::Whisper | Family::ClipText | Family::Wav2Vec => {
            ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "", "fc2")
        }
        Family::T5 => ("q", "k", "v", "o", "wi_1", "wi_0", "wo"),
        Family::DistilBert => ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "", "lin2"),
        Family::Deberta => (
            "query_proj",
            "key_proj",
            "value_proj",
            "attention.output.dense",
            "intermediate.dense",
            "",
            "output.dense",
        ),
        Family::Bert | Family::Albert | Family::XlNet | Family::Vit => {
            ("query", "key", "value", "attention.output.dense", "intermediate.dense", "", "output.dense")
        }
    };
    Names { q, k, v, out, up, gate, down }
}

/// Layers that get an adapter when the user names none: PEFT's table
/// (`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`), and query and value where it has no entry.
pub(super) fn adapted(family: Family) -> Vec<String> {
    let n = of(family, false);
    let ends: &[&str] = match family {
        Family::Phi => &["q_proj", "v_proj", "fc1", "fc2"],
        _ if n.v.is_empty() => &[n.q],
        _ => &[n.q, n.v],
    };
    ends.iter().map(|end| (*end).to_owned()).collect()
}
