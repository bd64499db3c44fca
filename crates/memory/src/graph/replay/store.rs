//! Storages with counted references, as PyTorch has them, and what holds how much.

use super::Sink;
use crate::alloc::Event;
use crate::{Error, MIB};

/// A storage that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Storage(u32);

/// What a storage is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageKind {
    /// Parameters and buffers.
    Parameters,
    /// Gradients of parameters.
    Gradients,
    /// State of the optimizer, its temporary lists included.
    Optimizer,
    /// What the forward pass makes: kept for the backward pass, or on its way.
    Activations,
    /// Gradients of activations and temporaries of the backward pass.
    Backward,
    /// Batches and labels.
    Inputs,
    /// Buckets and gathered copies of tasks on several GPUs.
    Communication,
}

impl StorageKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Backward,
        Self::Inputs,
        Self::Communication,
    ];

    /// For people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Backward => "backward pass",
            Self::Inputs => "inputs",
            Self::Communication => "communication",
        }
    }
}

/// Bytes by [`StorageKind`], in the order of [`StorageKind::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holdings([u64; StorageKind::ALL.len()]);

impl Holdings {
    /// Bytes of a kind.
    #[must_use]
    pub const fn of(&self, kind: StorageKind) -> u64 {
        self.0[kind as usize]
    }

    /// Bytes of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The kinds with the most bytes, largest first: `activations 1,204 MiB, gradients 400 MiB`.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut kinds = StorageKind::ALL.map(|kind| (self.of(kind), kind.as_str()));
        kinds.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let parts: Vec<String> = kinds
            .iter()
            .filter(|(bytes, _)| *bytes >= MIB)
            .map(|(bytes, name)| format!("{name} {} MiB", bytes.div_ceil(MIB)))
            .collect();
        if parts.is_empty() { "less than 1 MiB".to_owned() } else { parts.join(", ") }
    }
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    bytes: u64,
    references: u32,
    kind: StorageKind,
}

/// All storages; every change of them goes to the sink as an event.
pub(super) struct Store<'a, 's> {
    sink: &'a mut Sink<'s>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    now: Holdings,
    total: u64,
    most: (u64, Holdings, &'static str),
    phase: &'static str,
}

impl<'a, 's> Store<'a, 's> {
    pub(super) fn new(sink: &'a mut Sink<'s>) -> Self {
        Self {
            sink,
            slots: Vec::new(),
            vacant: Vec::new(),
            now: Holdings::default(),
            total: 0,
            most: (0, Holdings::default(), ""),
            phase: "",
        }
    }

    /// A phase begins.
    pub(super) fn mark(&mut self, phase: &'static str) -> Result<(), Error> {
        self.phase = phase;
        self.event(&Event::Mark { name: phase.to_owned() })
    }

    pub(super) fn event(&mut self, event: &Event) -> Result<(), Error> {
        (self.sink)(event)
    }

    /// Holdings at the highest point, and its phase.
    pub(super) const fn most(&self) -> (Holdings, &'static str) {
        (self.most.1, self.most.2)
    }

    /// A new storage, with one reference.
    pub(super) fn new_storage(&mut self, bytes: u64, kind: StorageKind) -> Result<Storage, Error> {
        let slot = Slot { bytes, references: 1, kind };
        let at = match self.vacant.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.now.0[kind as usize] += bytes;
        self.total += bytes;
        if self.total > self.most.0 {
            self.most = (self.total, self.now, self.phase);
        }
        self.event(&Event::Alloc { handle: u64::from(at), bytes })?;
        Ok(Storage(at))
    }

    /// One more reference.
    pub(super) fn hold(&mut self, storage: Storage) -> Storage {
        self.slots[storage.0 as usize].references += 1;
        storage
    }

    /// One reference less; the last one frees.
    pub(super) fn release(&mut self, storage: Storage) -> Result<(), Error> {
        let slot = &mut self.slots[storage.0 as usize];
        slot.references -= 1;
        if slot.references > 0 {
            return Ok(());
        }
        let Slot { bytes, kind, .. } = *slot;
        self.now.0[kind as usize] -= bytes;
        self.total -= bytes;
        self.vacant.push(storage.0);
        self.event(&Event::Free { handle: u64::from(storage.0) })
    }

    pub(super) fn release_all(&mut self, storages: impl IntoIterator<Item = Storage>) -> Result<(), Error> {
        storages.into_iter().try_for_each(|storage| self.release(storage))
    }

    /// Whether nothing else refers to it.
    pub(super) fn sole(&self, storage: Storage) -> bool {
        self.slots[storage.0 as usize].references == 1
    }

    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn bytes(&self, storage: Storage) -> u64 {
        self.slots[storage.0 as usize].bytes
    }

    /// It is for something else from now on: a gradient becomes that of a parameter.
    pub(super) fn turn_into(&mut self, storage: Storage, kind: StorageKind) {
        let slot = &mut self.slots[storage.0 as usize];
        self.now.0[slot.kind as usize] -= slot.bytes;
        self.now.0[kind as usize] += slot.bytes;
        slot.kind = kind;
    }
}
