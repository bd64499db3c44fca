//! A pickle machine for plain tensors. It builds values of its own and can call nothing.

use carma_memory::Error;
use std::collections::BTreeMap;

/// Nesting and references are indices into one list, so nothing here is recursive.
type Id = usize;

/// The only names that a pickle may mention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    OrderedDict,
    RebuildTensor,
    FloatStorage,
    LongStorage,
}

impl Name {
    fn of(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::RebuildTensor),
            ("torch", "FloatStorage") => Some(Self::FloatStorage),
            ("torch", "LongStorage") => Some(Self::LongStorage),
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
enum Value {
    /// None, a boolean or a float: nothing that is needed.
    Other,
    Int(i64),
    Text(String),
    Tuple(Vec<Id>),
    List,
    Dict(Vec<(Id, Id)>),
    Name(Name),
    Storage {
        float: bool,
        key: String,
    },
    Tensor(Spec),
}

/// A tensor that the pickle describes: a part of a storage.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    /// 32-bit floats, else 64-bit integers.
    pub(super) float: bool,
    /// Name of the storage's file.
    pub(super) storage: String,
    /// Elements before the first.
    pub(super) offset: usize,
    /// Its dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    /// Elements between neighbours of each dimension.
    pub(super) stride: Vec<usize>,
}

/// What a pickle built.
pub(super) struct Machine {
    values: Vec<Value>,
    result: Id,
}

/// Runs a pickle. Its length bounds the number of steps and of values.
pub(super) fn run(bytes: &[u8]) -> Result<Machine, Error> {
    let mut runner = Runner { bytes, ..Runner::default() };
    loop {
        let start = runner.at;
        let [code] = runner.take()?;
        if code == b'.' {
            let result = runner.pop()?;
            return Ok(Machine { values: runner.values, result });
        }
        runner.step(code).map_err(|e| match e {
            Fault::Short => bad(start, "the pickle is cut off"),
            Fault::Says(what) => bad(start, what),
        })?;
    }
}

fn bad(at: usize, what: impl Into<String>) -> Error {
    Error::bad(format!("data.pkl, byte {at}"), what)
}

enum Fault {
    Short,
    Says(String),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Short => Self::bad("data.pkl", "the pickle is cut off"),
            Fault::Says(what) => Self::bad("data.pkl", what),
        }
    }
}

fn says<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Says(what.into()))
}

#[derive(Default)]
struct Runner<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
}

impl<'a> Runner<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let part = self.bytes.get(self.at..).and_then(|b| b.first_chunk()).ok_or(Fault::Short)?;
        self.at += N;
        Ok(*part)
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8], Fault> {
        let end = self.at.checked_add(n).ok_or(Fault::Short)?;
        let part = self.bytes.get(self.at..end).ok_or(Fault::Short)?;
        self.at = end;
        Ok(part)
    }

    fn line(&mut self) -> Result<&'a str, Fault> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|b| *b == b'\n').ok_or(Fault::Short)?;
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).or_else(|_| says("a name that is not UTF-8"))
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    /// Takes the top, not below the last mark.
    fn pop(&mut self) -> Result<Id, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return says("takes from an empty stack");
        }
        self.stack.pop().ok_or(Fault::Short)
    }

    fn top(&self) -> Result<Id, Fault> {
        self.stack.last().copied().map_or_else(|| says("looks at an empty stack"), Ok)
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, Fault> {
        let Some(mark) = self.marks.pop() else { return says("no mark to go back to") };
        Ok(self.stack.split_off(mark))
    }

    fn put(&mut self, key: u32) -> Result<(), Fault> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn get(&mut self, key: u32) -> Result<(), Fault> {
        let Some(id) = self.memo.get(&key) else { return says(format!("memo {key} was never put")) };
        self.stack.push(*id);
        Ok(())
    }

    fn tuple(&mut self, n: usize) -> Result<(), Fault> {
        let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push(Value::Tuple(items));
        Ok(())
    }

    fn set(&mut self, pairs: &[Id]) -> Result<(), Fault> {
        let top = self.top()?;
        match &mut self.values[top] {
            Value::Dict(entries) if pairs.len().is_multiple_of(2) => {
                entries.extend(pairs.chunks_exact(2).map(|p| (p[0], p[1])));
                Ok(())
            }
            _ => says("sets items of what is no dictionary"),
        }
    }

    fn append(&self) -> Result<(), Fault> {
        // What is in lists is never needed.
        match self.values[self.top()?] {
            Value::List => Ok(()),
            _ => says("appends to what is no list"),
        }
    }

    fn step(&mut self, code: u8) -> Result<(), Fault> {
        match code {
            0x80 => {
                let [version] = self.take()?;
                if !(2..=3).contains(&version) {
                    return says(format!("pickle protocol {version}; torch.save writes 2"));
                }
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b']' => self.push(Value::List),
            b')' => self.push(Value::Tuple(Vec::new())),
            b'(' => self.marks.push(self.stack.len()),
            b'N' | 0x88 | 0x89 => self.push(Value::Other),
            b'G' => {
                let _: [u8; 8] = self.take()?;
                self.push(Value::Other);
            }
            b'K' => {
                let [n] = self.take()?;
                self.push(Value::Int(i64::from(n)));
            }
            b'M' => {
                let n = u16::from_le_bytes(self.take()?);
                self.push(Value::Int(i64::from(n)));
            }
            b'J' => {
                let n = i32::from_le_bytes(self.take()?);
                self.push(Value::Int(i64::from(n)));
            }
            0x8a => {
                let [len] = self.take()?;
                let raw = self.bytes(usize::from(len))?;
                if raw.len() > 8 {
                    return says("an integer of more than 64 bits");
                }
                let fill = if raw.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
                let mut full = [fill; 8];
                full[..raw.len()].copy_from_slice(raw);
                self.push(Value::Int(i64::from_le_bytes(full)));
            }
            b'X' => {
                let len = u32::from_le_bytes(self.take()?);
                let raw = self.bytes(len as usize)?;
                let Ok(text) = std::str::from_utf8(raw) else { return says("a text that is not UTF-8") };
                self.push(Value::Text(text.to_owned()));
            }
            b'q' => {
                let [key] = self.take()?;
                self.put(u32::from(key))?;
            }
            b'r' => {
                let key = u32::from_le_bytes(self.take()?);
                self.put(key)?;
            }
            b'h' => {
                let [key] = self.take()?;
                self.get(u32::from(key))?;
            }
            b'j' => {
                let key = u32::from_le_bytes(self.take()?);
                self.get(key)?;
            }
            b't' => {
                let items = self.since_mark()?;
                self.push(Value::Tuple(items));
            }
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let pairs = self.since_mark()?;
                self.set(&pairs)?;
            }
            b'a' => {
                self.pop()?;
                self.append()?;
            }
            b'e' => {
                self.since_mark()?;
                self.append()?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let Some(name) = Name::of(module, name) else {
                    return says(format!(
                        "asks for `{module}.{name}`, which is not among the names of plain tensors; refused"
                    ));
                };
                self.push(Value::Name(name));
            }
            b'R' => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                let made = self.make(callee, arguments)?;
                self.push(made);
            }
            b'b' => {
                // Attributes of an OrderedDict (`_metadata` of a state dict) are not needed.
                self.pop()?;
                if !matches!(self.values[self.top()?], Value::Dict(_)) {
                    return says("sets attributes of what is no dictionary");
                }
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(storage);
            }
            other => {
                let shown = if other.is_ascii_graphic() { char::from(other) } else { '?' };
                return says(format!(
                    "pickle instruction {other:#04x} (`{shown}`) is not needed for tensors; refused"
                ));
            }
        }
        Ok(())
    }

    fn items(&self, id: Id) -> Result<&[Id], Fault> {
        match &self.values[id] {
            Value::Tuple(items) => Ok(items),
            _ => says("a tuple was expected"),
        }
    }

    fn size(&self, id: Id) -> Result<usize, Fault> {
        match self.values[id] {
            Value::Int(n) => usize::try_from(n).or_else(|_| says(format!("{n} is no size"))),
            _ => says("a number was expected"),
        }
    }

    fn sizes(&self, id: Id) -> Result<Vec<usize>, Fault> {
        self.items(id)?.iter().map(|i| self.size(*i)).collect()
    }

    /// What "calling" one of the names gives.
    fn make(&self, callee: Id, arguments: Id) -> Result<Value, Fault> {
        let arguments = self.items(arguments)?;
        match self.values[callee] {
            Value::Name(Name::OrderedDict) if arguments.is_empty() => Ok(Value::Dict(Vec::new())),
            Value::Name(Name::RebuildTensor) => {
                let [storage, offset, shape, stride, ..] = *arguments else {
                    return says("_rebuild_tensor_v2 with fewer than four arguments");
                };
                let Value::Storage { float, key } = &self.values[storage] else {
                    return says("a tensor without a storage");
                };
                let (shape, stride) = (self.sizes(shape)?, self.sizes(stride)?);
                if shape.len() != stride.len() || shape.len() > 8 {
                    return says("a tensor whose shape and strides do not match");
                }
                let offset = self.size(offset)?;
                Ok(Value::Tensor(Spec { float: *float, storage: key.clone(), offset, shape, stride }))
            }
            _ => says("calls what can't be called"),
        }
    }

    /// `("storage", torch.FloatStorage, "12", "cpu", 64)`.
    fn storage(&self, id: Id) -> Result<Value, Fault> {
        let [word, kind, key, ..] = *self.items(id)? else { return says("a storage without a name") };
        let (Value::Text(word), Value::Name(kind), Value::Text(key)) =
            (&self.values[word], &self.values[kind], &self.values[key])
        else {
            return says("a storage that is not described by its kind and name");
        };
        let float = match kind {
            Name::FloatStorage => true,
            Name::LongStorage => false,
            Name::OrderedDict | Name::RebuildTensor => return says("a storage of no number type"),
        };
        if word != "storage" || key.is_empty() || !key.bytes().all(|b| b.is_ascii_digit()) {
            return says("a storage whose name is no number");
        }
        Ok(Value::Storage { float, key: key.clone() })
    }
}

impl Machine {
    fn text(&self, id: Id) -> Option<&str> {
        match &self.values[id] {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Tensors of `state_dict`, or of the dictionary itself where it holds tensors only.
    pub(super) fn state_dict(&self) -> Result<Vec<(String, Spec)>, Error> {
        let Value::Dict(top) = &self.values[self.result] else {
            return Err(Error::bad("data.pkl", "a dictionary was expected at the top"));
        };
        let inner = top.iter().rev().find(|(k, _)| self.text(*k) == Some("state_dict")).map(|(_, v)| *v);
        let entries = match inner.map(|id| &self.values[id]) {
            None => top,
            Some(Value::Dict(entries)) => entries,
            Some(_) => return Err(Error::bad("data.pkl", "`state_dict` is no dictionary")),
        };
        let mut tensors = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            if let (Some(name), Value::Tensor(spec)) = (self.text(*key), &self.values[*value]) {
                tensors.push((name.to_owned(), spec.clone()));
            }
        }
        Ok(tensors)
    }
}
