//! What each key of the configuration file is for. A section is written once, with [`section`]: the struct that reads
//! it, and the keys as `docs/reference/configuration.md` and `packaging/carma.toml` have them, which tests write.

use super::limits::{Joules, Most};
use super::{Size, Span, Sync};
use carma_core::model::SharingMode;
use carma_core::policy::{Objective, Order, RecoveryMethod};
use carma_core::units::MiB;
use carma_core::windows::Risk;
use std::path::PathBuf;

/// A section of the file.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// Its name; empty: the keys before the first section.
    pub name: &'static str,
    /// What it is about, as the doc comment says: words of a line are separated by one blank or more.
    pub about: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key of the file.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name of the field that holds it; in the file `_` is `-`.
    pub field: &'static str,
    /// What may be written.
    pub kind: &'static str,
    /// What stands for it where it is absent.
    pub value: Value,
    /// Its meaning, as [`Section::about`].
    pub meaning: &'static str,
}

/// The value of a key that is absent.
#[derive(Debug, Clone, Copy)]
pub enum Value {
    /// This, as TOML.
    Is(&'static str),
    /// Nothing, or what depends on something else: the meaning says it. An example, as TOML.
    Example(&'static str),
}

/// What may be written for a type.
pub trait Kind {
    /// In a few words.
    const KIND: &'static str;
}

macro_rules! kinds {
    ($($type:ty: $kind:literal,)*) => {
        $(impl Kind for $type {
            const KIND: &'static str = $kind;
        })*
    };
}

kinds! {
    bool: "true or false",
    u32: "whole number",
    u64: "whole number",
    usize: "whole number",
    i32: "whole number",
    f64: "number",
    String: "text",
    PathBuf: "path",
    Vec<String>: "list of names",
    Size: "size (`\"512M\"`)",
    Span: "time (`\"30s\"`)",
    Most<u32>: "whole number or `\"none\"`",
    Most<Joules>: "energy (`\"5 kWh\"`, `\"18 MJ\"`, a number of joules) or `\"none\"`",
    Most<MiB>: "size or `\"none\"`",
    SharingMode: "`\"exclusive\"`, `\"time-slice\"` or `\"mps\"`",
    Risk: "`\"carma\"`, `\"mean\"`, `\"ema\"` or `\"pattern\"`",
    Order: "`\"exclusive\"`, `\"round-robin\"`, `\"first-fit\"`, `\"best-fit\"`, `\"magm\"`, `\"lug\"`, `\"least-load\"`, `\"speedup\"`, `\"packed\"` or `\"throughput\"`",
    Objective: "`\"jct\"`, `\"makespan\"`, `\"energy\"` or `\"fair\"`",
    RecoveryMethod: "`\"graded\"` or `\"exclusive\"`",
    Sync: "`\"full\"` or `\"normal\"`",
}

/// A section: its keys as optional fields, then (`and`) what has keys of its own.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident $section:literal {
            $($(#[doc = $meaning:literal])+ pub $field:ident: $type:ty = $value:ident($text:literal),)+
        } $(and {
            $($(#[doc = $doc:literal])+ pub $inner:ident: $inner_type:ty,)+
        })?
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Default, Deserialize)]
        $(#[derive($($derive),+)])?
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $meaning])+ pub $field: Option<$type>,)+
            $($($(#[doc = $doc])+ pub $inner: $inner_type,)+)?
        }

        impl $name {
            /// The section, for people.
            pub const SECTION: Section = Section {
                name: $section,
                about: concat!($($about),+),
                keys: &[$(Key {
                    field: stringify!($field),
                    kind: <$type as Kind>::KIND,
                    value: Value::$value($text),
                    meaning: concat!($($meaning),+),
                }),+],
            };
        }
    };
}
pub(crate) use section;
